"""The turn of a main loop: who closes a descriptor is the last who heard of it."""

from __future__ import annotations

import os
import selectors

from vrampool_worker.lanes import turn


def test_an_event_of_what_was_closed_in_this_turn_is_dropped():
    """Its number may be another's by now: here it is, and what is read from it would be missed there."""
    heard: list[int] = []
    (first_r, first_w), (second_r, second_w) = os.pipe(), os.pipe()
    other: list[int] = []

    def hear(mine: int, its: int) -> None:
        heard.append(mine)
        os.read(mine, 1)
        selector.unregister(its)
        os.close(its)
        other.append(os.dup(first_w))  # takes the lowest number that is free
        assert other == [its]

    with selectors.DefaultSelector() as selector:
        selector.register(first_r, selectors.EVENT_READ, lambda _mask: hear(first_r, second_r))
        selector.register(second_r, selectors.EVENT_READ, lambda _mask: hear(second_r, first_r))
        os.write(first_w, b"x")
        os.write(second_w, b"x")
        turn(selector, 5.0)
    assert len(heard) == 1
    for fd in {first_r, first_w, second_r, second_w, *other}:
        os.close(fd)
