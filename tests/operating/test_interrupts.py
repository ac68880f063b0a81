"""Ctrl-C is never lost, also one that comes while Python collects garbage."""

from __future__ import annotations

import gc
import os
import signal

import pytest

from vrampool.cli.interrupting import Interrupts


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Collected:
    """Its end is the moment at which somebody presses Ctrl-C: what is raised there is printed, and lost."""

    def __del__(self) -> None:
        press()
        for _ in range(100):  # the handler runs between two of Python's own instructions
            pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_is_lost_in_a_destructor_is_raised_at_the_next_look() -> None:
    interrupts = Interrupts()
    with interrupts.listening():
        interrupts.check()
        made = Collected()
        del made
        gc.collect()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.take()
        interrupts.check()


def test_one_that_is_raised_where_it_was_pressed_is_answered_once() -> None:
    interrupts = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    with interrupts.listening():
        with pytest.raises(KeyboardInterrupt):
            press()
        interrupts.take()
        interrupts.check()
    assert signal.getsignal(signal.SIGINT) is before
