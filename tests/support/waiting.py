"""Waiting for what other threads and processes do: by looking again and again, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], *, timeout_s: float = 20.0, what: str = "the condition") -> T:
    """Return the condition's first true value; fail the test when there is none in time."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"{what} did not come true within {timeout_s:g} s"
        time.sleep(0.005)
    return value
