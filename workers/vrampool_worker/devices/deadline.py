"""Calls that may never come back, made in a thread that can be left behind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call_within(timeout_s: float, call: Callable[[], T], *, name: str) -> T:
    """Return what the call returns, or raise what it raises.

    Raises:
        TimeoutError: it did not come back in time. Its thread is left behind, and ends with the process.
    """
    answers: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue()

    def run() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:  # it is raised again in the caller's thread
            answers.put((None, error))

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        value, error = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]
