"""Ctrl-C while a command waits for a study: nothing new starts, and what runs is not thrown away unasked."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vrampool.handle import Handle


class Interrupts:
    """Counts the Ctrl-Cs. One that comes while a destructor runs is raised there and lost: Python only prints it."""

    def __init__(self) -> None:
        self._heard = 0
        self._taken = 0

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self._heard += 1
        raise KeyboardInterrupt

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear Ctrl-C from now on; only a process's first thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def take(self) -> None:
        """One was answered."""
        self._taken = self._heard

    def check(self) -> None:
        """Raise one that was heard and got lost.

        Raises:
            KeyboardInterrupt: there is one.
        """
        if self._heard > self._taken:
            raise KeyboardInterrupt


def interrupted(pool: Any, handle: Handle, interrupts: Interrupts, *, quiet: bool) -> None:
    """Stop a study, and say what becomes of the trials that run.

    In a pool that this command has started they are waited for; a second Ctrl-C ends them. In any other they finish by
    themselves.

    Args:
        pool: The `Pool` of the command.
        handle: What it waited for.
        interrupts: Where the next ones are heard.
        quiet: Show no progress.

    Raises:
        KeyboardInterrupt: the third Ctrl-C.
    """
    from vrampool.cli.output import follow

    interrupts.take()
    own = pool.local is not None and pool.local.process is not None
    try:
        handle.stop("interrupted")
        running = handle.progress().running
        trials = "1 trial" if running == 1 else f"{running} trials"
        if not own:
            name = handle.study_name
            rest = f"; {trials} under way may finish; `vrampool stop {name} --now` ends what runs" if running else ""
            _say(f"no more trials of {name} start{rest}")
            return
        if running:
            _say(f"no more trials start; waiting for {trials} under way; Ctrl-C again ends them now")
        follow(handle, quiet=quiet, look=interrupts.check)
    except KeyboardInterrupt:
        interrupts.take()
        if not own:
            raise
        _say("ending what runs")
        handle.cancel("interrupted")
        follow(handle, quiet=quiet, look=interrupts.check)


def _say(text: str) -> None:
    print(f"\n{text}", file=sys.stderr, flush=True)
