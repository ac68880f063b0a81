"""The coordinator dies between any two of its writes: the next one goes on from the storage, and the numbers are right.

In steps and in this process, as each point would cost seconds otherwise; real ones are killed elsewhere in this folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from support.stepped_pool import SteppedPool, stepped_pool

import vrampool.coordinator.loop
import vrampool.coordinator.tender
from vrampool.queueing import JobQueue
from vrampool.storage import Catalog, fail_lost, mark_of, open_storage
from vrampool.storage.pool_storage import PoolStorage

tender = vrampool.coordinator.tender
loop = vrampool.coordinator.loop
N_TRIALS = 5

#: Where it dies: the write, and whether before or after it.
POINTS = [
    pytest.param(owner, name, when, id=f"{when}-{name}")
    for owner, name in [
        (PoolStorage, "create_waiting"),
        (tender, "record_plan"),
        (JobQueue, "enqueue"),
        (tender, "create_retry"),
        (Catalog, "set_submission_state"),
    ]
    for when in ("before", "after")
]


class Died(BaseException):
    """Stands for a SIGKILL."""


def die_at(patch: pytest.MonkeyPatch, owner: Any, name: str, when: str, times: int) -> list[int]:
    """Make a write end the process, so many times and at every third call; returns the calls, as they are made."""
    write = getattr(owner, name)
    calls: list[int] = []

    def dying(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls))
        dies = len(calls) % 3 == 1 and len(calls) <= 3 * times
        if dies and when == "before":
            raise Died
        result = write(*args, **kwargs)
        if dies:
            raise Died
        return result

    patch.setattr(owner, name, dying)
    return calls


def drive(pool: SteppedPool, handle: vrampool.Handle) -> int:
    """Drive to the end; whenever the coordinator dies another one takes over. Returns how often it did."""
    deaths, idle = 0, 0
    while not handle.state.final:
        try:
            idle = 0 if pool.turn(lambda trial: 1.0 if trial.number else 100.0) else idle + 1
        except Died:
            deaths += 1
            pool.restart_coordinator()
        assert idle < 50, f"nothing moves: {handle.trials}"
        lose_the_first(pool, handle)
    return deaths


def lose_the_first(pool: SteppedPool, handle: vrampool.Handle) -> None:
    """Trial 0 loses its worker, as far as the storage shows."""
    for worker in pool.workers:
        for item in list(worker.running):
            if item.attempt.ticket.number == 0:
                worker.running.remove(item)
                storage = open_storage(pool.settings.storage or "", create_schema=False)
                assert fail_lost(storage, item.attempt.ticket.trial_id, "its worker went away")
                storage.close()


@pytest.mark.parametrize(("owner", "name", "when"), POINTS)
def test_wherever_it_dies_each_trial_is_there_once_and_the_lost_one_is_tried_again_once(
    valkey: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, when: str
):
    def draw(trial):
        return trial.suggest_float("x", 0, 1)

    with stepped_pool(valkey, tmp_path, slots=3) as pool:
        handle = pool.submit(draw, N_TRIALS)
        calls = die_at(monkeypatch, owner, name, when, times=2)
        deaths = drive(pool, handle)
        assert deaths == min(2, (len(calls) + 2) // 3) > 0
        trials = handle.trials
        assert handle.state == "done"
        assert handle.progress().counts == {"COMPLETE": N_TRIALS}
        assert [trial.number for trial in trials] == list(range(len(trials)))
        states = [trial.state for trial in trials]
        assert states.count(TrialState.COMPLETE) == N_TRIALS
        assert states.count(TrialState.FAIL) == len(trials) - N_TRIALS == 1
        marks = [mark_of(trial) for trial in trials]
        retries = [mark.retry_of for mark in marks if mark is not None and mark.retry_of is not None]
        assert retries == [0]
        assert pool.pool.queue() == []
