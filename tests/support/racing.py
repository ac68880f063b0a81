"""Several processes doing the same thing at the same moment."""

from __future__ import annotations

import multiprocessing as mp
import queue
import time
from collections.abc import Callable
from typing import Any

LIMIT_S = 90.0


def race(processes: int, runner: Callable[..., Any], *args: Any) -> list[Any]:
    """Call ``runner(barrier, index, *args)`` in several processes; return what each returned, by index.

    The processes are forked, so that they start within milliseconds: nothing that holds a connection may be passed.
    Raises RuntimeError with the text of the first exception, and when one does not answer in time.
    """
    context = mp.get_context("fork")
    barrier, answers = context.Barrier(processes), context.Queue()
    children = [
        context.Process(target=_run, args=(answers, runner, barrier, index, args), daemon=True)
        for index in range(processes)
    ]
    for child in children:
        child.start()
    results: dict[int, Any] = {}
    deadline_s = time.monotonic() + LIMIT_S
    try:
        while len(results) < processes:
            try:
                index, failure, value = answers.get(timeout=max(0.1, deadline_s - time.monotonic()))
            except queue.Empty:
                raise RuntimeError(f"only {len(results)} of {processes} processes answered in {LIMIT_S} s") from None
            if failure is not None:
                raise RuntimeError(f"process {index}: {failure}")
            results[index] = value
    finally:
        for child in children:
            if len(results) < processes:
                child.kill()
            child.join()
    return [results[index] for index in range(processes)]


def _run(answers: Any, runner: Callable[..., Any], barrier: Any, index: int, args: tuple[Any, ...]) -> None:
    try:
        answers.put((index, None, runner(barrier, index, *args)))
    except BaseException as error:  # told to the parent, which raises it
        barrier.abort()
        answers.put((index, f"{type(error).__name__}: {error}", None))
