"""Everything in Redis has an owner and an end, and two pools on one Redis do not see each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import redis
from optuna.trial import TrialState
from support.parts import parts, ready_worker
from support.stepped_pool import SteppedPool, stepped_pool

from vrampool.consistency import Mender
from vrampool.queueing import Registry
from vrampool.queueing.inventory import keys_of, take_inventory
from vrampool.queueing.names import Names
from vrampool.signing import load_secret

Stepped = Callable[..., AbstractContextManager[SteppedPool]]
DAY_S = 24 * 3600
#: How long a key may stay when nobody touches it any more, by what its name begins with, and whose it is.
ENDS_S = {
    "vrampool:vrampool:samples:": 7 * DAY_S,  # a ring of the worker's
    "vrampool:vrampool:releases": 7 * DAY_S,  # the same
    "vrampool:vrampool:epoch": 7 * DAY_S,  # the coordinator's
    "vrampool:vrampool:overheads": 90 * DAY_S,  # of each kind of device
    "vrampool:vrampool:budgets": DAY_S,  # of each device
    "vrampool:vrampool:workers": DAY_S,
    "vrampool:vrampool:earmarks": DAY_S,
    "vrampool:vrampool:": 3_600,  # all else: leases, answers, records, the leader, the demand
    "rq:": 600,  # jobs, results and books that RQ's tools show
}
#: RQ's sets of names: a queue's and a worker's own entry leaves with it, and the set with its last entry.
SETS_OF_NAMES = {"rq:queues", "rq:workers", "rq:workers:vrampool"}
OBJECTIVES = Path(__file__).parents[1] / "checkpoints" / "objectives.py"


def number(trial: Any) -> float:
    return float(trial.number)


def limit_s(key: str) -> int:
    return next(seconds for prefix, seconds in ENDS_S.items() if key.startswith(prefix))


def test_after_a_study_every_key_has_an_owner_and_an_end(tmp_path: Path):
    """Coordinator, worker and trials as processes; they have ended, one of them by SIGKILL."""
    with parts(tmp_path, spares=0) as made:
        coordinator, worker = made.coordinator(), made.worker()
        with made.pool() as pool:
            ready_worker(pool)
            env = {"NOTES": str(tmp_path / "notes"), "GATE": str(tmp_path / "gate")}
            (tmp_path / "gate").touch()
            for objective, n_trials in (("train", 3), ("kill_itself_once", 1)):
                pool.submit(f"{OBJECTIVES}:{objective}", n_trials, vram="90MiB", env=env).wait(40)
            connection = pool.connection
            worker.terminate()
            assert worker.wait(20) == 0
            coordinator.kill()
            coordinator.wait(10)
            found = {key.decode(): connection.ttl(key) for key in connection.scan_iter()}
            assert len(found) > 10
            for key, ttl_s in found.items():
                assert key.startswith(("vrampool:vrampool:", "rq:")), f"{key} is nobody's"
                if key not in SETS_OF_NAMES:
                    assert 0 <= ttl_s <= limit_s(key), f"{key} ends in {ttl_s} s"
            assert connection.smembers("rq:queues") == {b"rq:queue:vrampool"}
            assert not connection.exists("rq:workers", "rq:workers:vrampool"), "the worker has left"
            listed = keys_of(connection, "vrampool")
            missed = {key for key in found if key not in listed and not key.startswith("rq:worker:")}
            assert missed <= SETS_OF_NAMES, (
                "the inventory misses none, but the record that a worker leaves for a minute"
            )
            inventory = take_inventory(connection, "vrampool")
            assert (inventory.unknown, inventory.endless, inventory.listed) == (frozenset(), (), ())


def test_with_rqs_own_prefix_every_key_lies_under_ours(valkey: str, tmp_path: Path):
    """`RQ_KEY_PREFIX` is read once in a process, so this takes one of its own."""
    program = (
        "import sys; sys.path[:0] = sys.argv[3:]\n"
        "from pathlib import Path\n"
        "from support.stepped_pool import stepped_pool\n"
        "import json\n"
        "with stepped_pool(sys.argv[1], Path(sys.argv[2])) as pool:\n"
        "    handle = pool.submit(lambda trial: 1.0, 2)\n"
        "    pool.workers[0].tell_registry(); pool.coordinator.turn()\n"
        "    pool.drive(handle)\n"
        "    print(json.dumps([key.decode() for key in pool.pool.connection.scan_iter()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, valkey, str(tmp_path), str(Path(__file__).parents[1])],
        env={**os.environ, "RQ_KEY_PREFIX": "vrampool:rq"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    keys = json.loads(done.stdout.splitlines()[-1])
    assert len(keys) > 5 and [key for key in keys if not key.startswith("vrampool:")] == []


# ---- two pools -----------------------------------------------------------------------------------------


def test_two_pools_on_one_redis_do_not_see_each_other(valkey: str, tmp_path: Path):
    """A38. The same study name in two databases, workers and coordinators of both, and a plain RQ application."""
    plain = redis.Redis.from_url(valkey)
    plain.rpush("rq:queue:default", "plain-job")
    plain.hset("rq:job:plain-job", mapping={"origin": "default", "status": "queued", "data": "x"})
    with stepped_pool(valkey, tmp_path) as one, stepped_pool(valkey, tmp_path) as two:
        handles = [one.submit(number, 3, study_name="S"), two.submit(lambda trial: 2.0, 3, study_name="S")]
        for pool in (one, two):
            pool.workers[0].tell_registry()
            pool.coordinator.turn()
        names = [Names(pool.settings.pool) for pool in (one, two)]
        assert [len(pool.pool.queue()) for pool in (one, two)] == [1, 1]
        assert {job.submission_id for job in two.pool.queue()} == {handles[1].id}
        for pool in (one, two):
            (record,) = pool.pool.devices()
            assert record.name == pool.workers[0].name
        registries = [Registry(plain, pool.settings.pool) for pool in (one, two)]
        registries[0].beat(_larger(one), 600.0)
        assert registries[1].largest_budget(0) != registries[0].largest_budget(0)
        keys = [set(keys_of(plain, pool.settings.pool)) for pool in (one, two)]
        assert keys[0] & keys[1] == set()
        assert all(key.startswith(("rq:", names[0].own_prefix)) for key in keys[0])
        # One pool's list is lost: the other's check sees nothing of it, and mends nothing of it.
        plain.delete(names[0].waiting)
        menders = [_mender(pool) for pool in (one, two)]
        assert [len(mender.look()) for mender in menders] == [1, 0]
        menders[1].fix(menders[1].look())
        assert plain.lrange(names[0].waiting, 0, -1) == []
        menders[0].fix(menders[0].look())
        one.drive(handles[0])
        two.drive(handles[1])
        assert [trial.value for trial in handles[0].trials] == [0.0, 1.0, 2.0]
        assert [trial.value for trial in handles[1].trials] == [2.0, 2.0, 2.0]
    assert plain.lrange("rq:queue:default", 0, -1) == [b"plain-job"]
    assert plain.hget("rq:job:plain-job", "data") == b"x"


def test_a_ticket_of_one_pool_is_refused_in_the_other(valkey: str, tmp_path: Path):
    """Though both have the same secret: whoever copies a job over gains nothing."""
    with stepped_pool(valkey, tmp_path) as one, stepped_pool(valkey, tmp_path) as two:
        handle = one.submit(number, 1)
        one.workers[0].tell_registry()
        one.coordinator.turn()
        connection = one.pool.connection
        (job_id,) = connection.lrange(Names(one.settings.pool).waiting, 0, -1)
        connection.lpush(Names(two.settings.pool).waiting, job_id)
        with pytest.raises(Exception, match=f"was signed for the pool '{one.settings.pool}'"):
            two.workers[0].take()
        one.reconcile()
        one.drive(handle)
        assert [trial.state for trial in handle.trials] == [TrialState.COMPLETE]


def _mender(pool: SteppedPool) -> Mender:
    made = Mender(pool.settings, pool.pool.connection, pool.pool.storage, load_secret(pool.settings, create=False))
    made.pause_s = 0.0
    return made


def _larger(pool: SteppedPool) -> Any:
    import dataclasses

    (record,) = pool.pool.devices()
    return dataclasses.replace(record, budget_bytes=record.budget_bytes * 2)
