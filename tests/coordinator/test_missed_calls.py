"""A worker that does not hear that it is called: the trial is run all the same, by whoever looks by himself."""

from __future__ import annotations

import os
import signal

import pytest
from support.parts import Parts, parts, ready_worker

from vrampool.queueing import Events, connect
from vrampool.queueing.names import Names

OBJECTIVE = """
def objective(trial):
    return trial.suggest_float("x", 0, 1)
"""


@pytest.fixture
def pool_parts(tmp_path):
    (tmp_path / "objective.py").write_text(OBJECTIVE)
    with parts(tmp_path) as made:
        yield made


def run_trials(made: Parts, count: int) -> set[str]:
    """Run trials to their end; return the names of the workers that ran them."""
    pool = made.pool()
    handle = pool.submit(f"{made.folder}/objective.py:objective", count, vram="100MiB")
    handle.wait(60)
    trials = handle.study.trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * count
    pool.close()
    return {trial.user_attrs["vrampool:attempt"]["worker"] for trial in trials}


def test_a_worker_that_hears_no_call_at_all_runs_trials_by_its_own_look(pool_parts):
    """Its user may not have the channel: `deploy/redis/users.acl` of an earlier version."""
    admin = connect(pool_parts.redis, role="test")
    admin.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", "resetchannels", "&*:events")
    pool_parts.coordinator()
    worker = pool_parts.worker(redis=pool_parts.redis.replace("unix://", "unix://deaf:pw@"))
    pool = pool_parts.pool()
    record = ready_worker(pool)
    assert admin.pubsub_numsub(Names(pool.settings.pool).calls(record.name))[0][1] == 0
    assert run_trials(pool_parts, 3) == {record.name}
    assert "is not heard" in pool_parts.log_of(worker)
    pool.close()
    admin.close()


def test_a_worker_that_is_called_and_stands_still_costs_a_moment(pool_parts):
    """It is the one that is called first; then the other one is."""
    pool_parts.coordinator()
    pool = pool_parts.pool()
    pool_parts.worker()
    first = ready_worker(pool)
    pool_parts.worker()
    second = ready_worker(pool, but=(first.name,))
    (name,) = run_trials(pool_parts, 1)  # of two with room the same one is called each time
    still, goes = (first, second) if first.name == name else (second, first)
    os.kill(still.pid, signal.SIGSTOP)
    try:
        with Events(pool.connection, pool.settings.pool).subscribe(still.name) as heard:
            told: list[dict[str, object]] = []
            for _ in range(8):  # the other one may come first by its own look, which is no call
                assert run_trials(pool_parts, 1) == {goes.name}
                while more := heard.wait(0.5):
                    told += more
                if {"kind": "enqueued"} in told:
                    break
            assert {"kind": "enqueued"} in told
    finally:
        os.kill(still.pid, signal.SIGCONT)
    pool.close()
