"""A pruned trial's room is another trial's within a second of `should_prune()` saying so."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState
from support.pools import LivePool
from support.waiting import until

#: All trials but the first are worse than it from their first report on, so the median pruner ends them.
LIMIT_S = 1.0


def test_room_is_granted_within_a_second_of_the_answer(make_pool, tmp_path):
    pool = make_pool(max_trials=1, spares=2)
    times = tmp_path / "times"
    times.mkdir()

    def objective(trial):
        for step in range(3):
            trial.report(1.0 if trial.number else 0.0, step)
            if trial.should_prune():
                (Path(times) / f"{trial.number}").write_text(repr(time.time()))
                raise optuna.TrialPruned
        return 0.0

    handle = pool.run(objective, 6, pruner=optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0))
    assert [trial.state for trial in handle.trials] == [TrialState.COMPLETE] + [TrialState.PRUNED] * 5

    granted = {item["number"]: item["ended_at_s"] for item in until(lambda: released(pool, 6), what="six releases")}
    waits = [granted[number] - float((times / f"{number}").read_text()) for number in range(1, 6)]
    assert min(waits) >= 0
    assert sorted(waits)[1] < LIMIT_S, waits  # two of five at least: other work on the machine may delay the rest


def released(pool: LivePool, count: int) -> list[dict[str, Any]] | None:
    """Return the releases of memory in the pool's history, when there are so many."""
    found = pool.history().releases()
    return found if len(found) >= count else None
