"""Objectives that do next to nothing, so that the pool's own cost is what is measured."""

from __future__ import annotations

import time


def noop(trial):
    """Suggest one parameter and return it."""
    return trial.suggest_float("x", 0, 1)


def first_line(trial):
    """Note the time of the first line by the host's clock; then take long enough for the next spare to get ready."""
    now = time.time()
    trial.set_user_attr("first_line", now)
    time.sleep(0.2)
    return trial.suggest_float("x", 0, 1)


def reporting(trial):
    """Report 1 250 steps as fast as they go, and note how long `should_prune` takes."""
    x = trial.suggest_float("x", 0, 1)
    waits = []
    for step in range(1250):
        trial.report(x + step, step)
        started = time.perf_counter()
        trial.should_prune()
        waits.append(time.perf_counter() - started)
    waits.sort()
    trial.set_user_attr("should_prune_s", [waits[len(waits) // 2], waits[int(len(waits) * 0.99)], waits[-1]])
    return x


def spawned(number, queue):
    """What a process of a bare spawn loop does."""
    queue.put(number)
