"""A restored backup goes on: of everything a pool keeps, the database and the secret are enough."""

from __future__ import annotations

import shutil

import pytest
from optuna.trial import TrialState
from support.pools import FAST
from support.waiting import until

import vrampool
from vrampool.storage import Catalog, SubmissionState, mark_of


def slow_square():
    """Return an objective of a fifth of a second that travels by itself."""

    def objective(trial):
        import time

        x = trial.suggest_float("x", -1, 1)
        time.sleep(0.2)
        return x * x

    return objective


def test_a_study_goes_on_from_the_database_and_the_secret_alone(own_settings, tmp_path):
    """Redis is not in the backup: what waits is enqueued again. Nothing is lost, and nothing counts twice."""
    first, second = tmp_path / "first", tmp_path / "second"
    with vrampool.Pool(state_dir=first, **FAST) as pool:
        handle = pool.submit(slow_square(), 12, vram="200MiB", study_name="kept", max_concurrent_trials=2)
        until(lambda: handle.progress().finished >= 3, what="some trials")
    second.mkdir(mode=0o700)
    for path in (first / "study.db", first / "secret"):
        shutil.copy2(path, second / path.name)
    with vrampool.Pool(state_dir=second, **FAST) as pool:
        handle = pool.attach("kept").wait(60)
        trials = handle.study.get_trials()
    assert str(handle.state) == "done"
    assert not any(trial.state in (TrialState.RUNNING, TrialState.WAITING) for trial in trials)
    roots = [mark_of(trial).root if mark_of(trial).root is not None else trial.number for trial in trials]
    complete = [root for root, trial in zip(roots, trials, strict=True) if trial.state == TrialState.COMPLETE]
    assert len(complete) == len(set(complete)) == 12


@pytest.mark.slow
def test_with_another_secret_what_was_open_is_refused_and_what_is_finished_stays(own_settings, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    with vrampool.Pool(state_dir=first, **FAST) as pool:
        handle = pool.submit(slow_square(), 500, vram="200MiB", study_name="kept", max_concurrent_trials=2)
        until(lambda: handle.progress().finished >= 3, what="some trials")
    second.mkdir(mode=0o700)
    shutil.copy2(first / "study.db", second / "study.db")
    with vrampool.Pool(state_dir=second, **FAST) as pool:
        (row,) = Catalog(pool.storage).submissions()
        until(lambda: Catalog(pool.storage).submission(row.id).state == SubmissionState.FAILED, what="the refusal")
        assert "signed with another secret" in Catalog(pool.storage).submission(row.id).reason
        again = pool.submit(slow_square(), 1, vram="200MiB", study_name="kept").wait(60)
        assert [trial.state for trial in again.trials] == [TrialState.COMPLETE]
        assert sum(trial.state == TrialState.COMPLETE for trial in again.study.get_trials()) >= 4
