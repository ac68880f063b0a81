"""What is told of a trial that was tried several times, and what RQ's books cannot change any more."""

from __future__ import annotations

import time
from collections import Counter

from optuna.trial import TrialState
from parity import objectives
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.worker import SimpleWorker
from support.pools import LivePool, check_invariants, facts_of, only

from vrampool.queueing import SignedSerializer
from vrampool.signing import load_secret
from vrampool.storage import mark_of

COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL


def test_each_attempt_tells_the_first_the_one_before_and_the_cause(pool: LivePool) -> None:
    """A26: two attempts are killed, the third completes, all with the same parameters."""
    called: list[int] = []
    handle = pool.run(objectives.killed_twice, 1, callbacks=[lambda _, trial: called.append(trial.number)])
    first, second, third = handle.trials
    assert [trial.state for trial in handle.trials] == [FAIL, FAIL, COMPLETE]
    assert first.params == second.params == third.params != {}
    marks = [mark for mark in map(mark_of, handle.trials) if mark is not None]
    assert [(mark.root, mark.retry_of, mark.attempt) for mark in marks] == [(None, None, 1), (0, 0, 2), (0, 1, 3)]
    assert all("killed by signal 9" in facts_of(trial).text for trial in (first, second))
    assert second.system_attrs["failed_trial"] == third.system_attrs["failed_trial"] == 0, "as Optuna's: the first"
    assert (second.system_attrs["retry_history"], third.system_attrs["retry_history"]) == ([0], [0, 1])
    assert first.intermediate_values == {0: 1.0, 1: 1.0} and third.intermediate_values == {0: 3.0, 1: 3.0}
    assert third.user_attrs["note"] == "n3" and third.user_attrs["from"] == "attempt 1", "it keeps what was set before"
    assert called == [third.number] and handle.progress().counts == {"COMPLETE": 1}
    check_invariants(pool)


def test_a_trial_that_always_dies_is_given_up_and_counts_once(pool: LivePool) -> None:
    handle = pool.run(objectives.killed_always, 2, max_infra_retries=1, max_concurrent_trials=1)
    roots = Counter(
        trial.number if (mark := mark_of(trial)) is None or mark.root is None else mark.root for trial in handle.trials
    )
    assert sorted(roots.values()) == [2, 2]
    assert handle.state == "done" and handle.progress().counts == {"FAIL": 2}


def test_a_retry_keeps_its_place_in_a_grid(pool: LivePool) -> None:
    """Optuna's own retries of a GridSampler do: the point is tried again, and none is lost."""
    import optuna

    sampler = optuna.samplers.GridSampler({"x": [1, 2, 3], "y": [1, 2]}, seed=1)
    handle = pool.run(objectives.grid_killed_once, 20, sampler=sampler)
    trials = [trial for trial in handle.trials if trial.state == COMPLETE]
    assert len({(trial.params["x"], trial.params["y"]) for trial in trials}) == 6
    assert FAIL in {trial.state for trial in handle.trials}, "one was killed"
    assert len(trials) <= 6 + 4


def test_a_finished_trial_is_not_touched_by_what_rq_thinks_of_its_job(pool: LivePool) -> None:
    """A36: RQ is made to believe that the job was abandoned, and cleans up. The storage is the truth."""
    handle = pool.run(objectives.number, 1)
    before = only(handle)
    connection, settings = pool.pool.connection, pool.pool.settings
    job_id = f"{handle.id}-{before.number}"
    job = Job.fetch(job_id, connection=connection)
    assert job.get_status() == JobStatus.FINISHED
    registry = StartedJobRegistry(settings.pool, connection=connection)
    job.set_status(JobStatus.STARTED)
    connection.zadd(registry.key, {f"{job_id}:forgotten": time.time() - 1000})
    serializer = SignedSerializer(load_secret(settings, create=False))
    worker = SimpleWorker([settings.pool], connection=connection, serializer=serializer)
    worker.run_maintenance_tasks()
    assert job_id in FailedJobRegistry(settings.pool, connection=connection).get_job_ids(), "RQ calls it failed"
    following = pool.run(objectives.number, 2, study_name=handle.study_name)
    assert following.state == "done"
    trials = handle.study.trials
    assert [trial.state for trial in trials] == [COMPLETE] * 3, "no retry, no second execution"
    assert (trials[0].value, trials[0].datetime_complete) == (before.value, before.datetime_complete)
    check_invariants(pool)
