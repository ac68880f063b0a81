"""A study that does not live in the pool's storage: what is in it afterwards, and that nothing of it is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial
from parity import objectives
from support.pools import LivePool

from vrampool.errors import InputError, RequestError

COMPLETE, FAIL, RUNNING, WAITING = TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING
VRAM = "100MiB"


def storage_of(kind: str, folder: Path) -> Any:
    if kind == "memory":
        return InMemoryStorage()
    if kind == "journal":
        return JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    return RDBStorage(f"sqlite:///{folder / 'own.db'}")


@pytest.mark.parametrize("kind", ["memory", "journal", "sqlite"])
def test_every_kind_of_storage_gets_its_trials_back(pool: LivePool, tmp_path: Path, kind: str) -> None:
    """Under the numbers that the objectives saw, with everything that they left; also when they end out of order."""
    study = optuna.create_study(storage=storage_of(kind, tmp_path), study_name="own", direction="maximize")
    study.set_metric_names(["score"])
    study.optimize(objectives.draw, n_trials=1)
    running = study.ask()
    study.enqueue_trial({"x": 0.25})
    pool.pool.optimize(study, objectives.leave_everything, n_trials=7, vram=VRAM)
    found = {trial.number: trial for trial in study.trials}
    assert sorted(found) == list(range(9))
    for number, trial in found.items():
        if number in (0, running.number):
            continue
        assert trial.state == COMPLETE
        assert trial.user_attrs["number"] == number
        assert trial.value == trial.params["x"] == trial.intermediate_values[1]
        assert trial.constraints == {"size": -float(number)}
        assert trial.datetime_start is not None and trial.datetime_complete is not None
        assert trial.duration is not None and trial.duration.total_seconds() >= 0
    assert [trial.params["x"] for trial in study.trials if trial.system_attrs.get("fixed_params")] == [0.25]
    assert study.best_value == max(trial.value for trial in study.trials if trial.value is not None)
    study.tell(running, 0.5)
    study.optimize(objectives.draw, n_trials=1)
    assert len(study.trials) == 10, "Optuna goes on with it"


def test_a_call_that_is_refused_leaves_the_study_as_it_was(pool: LivePool) -> None:
    study = optuna.create_study()
    study.enqueue_trial({"x": 0.5})
    names = [item.study_name for item in pool.pool.storage.get_all_studies()]
    for wrong in ({"vram": "900GiB"}, {"vram": "much"}, {"max_concurrent_trials": 0}):
        with pytest.raises((RequestError, InputError)):
            pool.pool.optimize(study, objectives.draw, n_trials=1, **wrong)
    assert [trial.state for trial in study.trials] == [WAITING]
    assert [item.study_name for item in pool.pool.storage.get_all_studies()] == names


def test_trials_that_were_tried_again_stand_beside_their_last_attempt(pool: LivePool) -> None:
    """Number for number as in the pool's own study: a retry is a trial of its own."""
    study = optuna.create_study()
    called: list[int] = []
    pool.pool.optimize(
        study, objectives.killed_twice, n_trials=1, vram=VRAM, callbacks=[lambda _, trial: called.append(trial.number)]
    )
    assert [trial.state for trial in study.trials] == [FAIL, FAIL, COMPLETE]
    assert called == [2] and study.trials[2].system_attrs["retry_history"] == [0, 1]


def test_a_study_with_a_past_is_gone_on_with(pool: LivePool) -> None:
    """What Optuna's own checks would refuse to add is brought over as it is."""
    study = optuna.create_study()
    study.add_trial(create_trial(state=FAIL))
    study.enqueue_trial({"x": 40.0})
    with pytest.warns(UserWarning, match="out of range"):
        study.optimize(objectives.draw, n_trials=1)
    pool.pool.optimize(study, objectives.draw, n_trials=2, vram=VRAM)
    assert [trial.state for trial in study.trials] == [FAIL, COMPLETE, COMPLETE, COMPLETE]
    assert study.trials[1].params == {"x": 40.0}
