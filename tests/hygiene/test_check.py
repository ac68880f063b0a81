"""`vrampool status --check`: damage of every kind is found, said in words, and mended by `--fix`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import redis
from optuna.trial import TrialState
from support.commands import call
from support.stepped_pool import SECRET, SteppedPool

from vrampool.consistency import Difference, Mender
from vrampool.queueing import begin
from vrampool.queueing.inventory import keys_of
from vrampool.queueing.names import Names
from vrampool.signing import load_secret
from vrampool.storage import Catalog, SubmissionState, lost_reason

Stepped = Callable[..., AbstractContextManager[SteppedPool]]
COMPLETE, FAIL, RUNNING, WAITING = TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING


def number(trial: Any) -> float:
    return float(trial.number)


class Damaged:
    """A pool with one trial that runs and one that waits, and what is done to it."""

    def __init__(self, pool: SteppedPool) -> None:
        self.pool = pool
        self.redis: redis.Redis = pool.pool.connection
        self.names = Names(pool.settings.pool)
        self.handle = pool.submit(number, 2)
        self.worker = pool.workers[0]
        self.worker.tell_registry()
        pool.coordinator.turn()
        assert pool.start_on(self.worker) is not None
        for worker in pool.workers:
            worker.tell_registry()
        pool.coordinator.turn()
        assert self.states() == [RUNNING, WAITING]
        self.mender = Mender(pool.settings, self.redis, pool.pool.storage, load_secret(pool.settings, create=False))
        self.mender.pause_s = 0.0  # the server has just started

    def states(self) -> list[TrialState]:
        return [trial.state for trial in self.handle.trials]

    def job_id(self, number: int) -> str:
        return f"{self.handle.id}-{number}"

    def job(self, number: int) -> str:
        return self.names.job(self.job_id(number))

    def found(self) -> dict[Difference, str]:
        findings = self.mender.confirm(self.mender.look())
        assert len({finding.kind for finding in findings}) == len(findings), findings
        return {finding.kind: finding.text for finding in findings}

    def fix(self) -> None:
        findings = self.mender.look()
        self.mender.fix(findings)
        assert self.mender.look() == []


@pytest.fixture
def damaged(stepped: Stepped):
    with stepped(workers=2) as pool:
        yield Damaged(pool)


def lose_the_list(it: Damaged) -> None:
    it.redis.delete(it.names.waiting)


def lose_the_job(it: Damaged) -> None:
    it.redis.delete(it.job(1))


def lose_the_ticket(it: Damaged) -> None:
    it.redis.hdel(it.job(1), "data")


def stop_half_way_in_a_take(it: Damaged) -> None:
    """Its worker died before it had written anything more, and its lease has run out."""
    it.redis.lmove(it.names.waiting, it.names.intermediate)


def lose_the_lease(it: Damaged) -> None:
    it.redis.delete(it.names.live(it.job_id(0)))


def leave_a_job_of_an_ended_trial(it: Damaged) -> None:
    it.redis.rpush(it.names.waiting, "gone-7")
    it.redis.hset(it.names.job("gone-7"), mapping={"origin": it.names.pool, "status": "queued", "data": "x"})


def leave_a_job_in_no_list(it: Damaged) -> None:
    it.redis.hset(it.names.job("gone-8"), mapping={"origin": it.names.pool, "status": "queued", "data": "x"})


def leave_what_is_no_id(it: Damaged) -> None:
    it.redis.rpush(it.names.waiting, b"\xff\xfe\n")


def list_it_twice(it: Damaged) -> None:
    it.redis.rpush(it.names.waiting, it.job_id(1), it.job_id(1))


def leave_a_booking(it: Damaged) -> None:
    """RQ shows for ever what an older version or a worker that was killed has left."""
    it.redis.zadd(it.names.started, {"gone-9:abc": 9e12})


def leave_a_worker(it: Damaged) -> None:
    it.redis.sadd("rq:workers", "rq:worker:killed-1")
    it.redis.sadd(f"rq:workers:{it.names.pool}", "rq:worker:killed-1")


def take_the_end_away(it: Damaged) -> None:
    it.redis.persist(it.names.worker_prefix + it.worker.name)


def leave_a_strange_key(it: Damaged) -> None:
    it.redis.set(f"vrampool:{it.names.pool}:of-another-version", 1)


DAMAGE = [
    (lose_the_list, Difference.NOT_QUEUED, "waits, but is in no list"),
    (lose_the_job, Difference.NOT_QUEUED, "waits, but is in no list"),
    (lose_the_ticket, Difference.NOT_QUEUED, "waits, but is in no list"),
    (stop_half_way_in_a_take, Difference.NOT_QUEUED, "its job was taken and not begun"),
    (leave_a_job_of_an_ended_trial, Difference.NOTHING_WAITS, "the job gone-7 is there, but no trial waits for it"),
    (leave_a_job_in_no_list, Difference.NOTHING_WAITS, "the job gone-8 is there"),
    (leave_what_is_no_id, Difference.NOTHING_WAITS, r"the job \udcff\udcfe"),
    (list_it_twice, Difference.LISTED_TWICE, "is in the list 3 times"),
    (leave_a_booking, Difference.BOOKED, "RQ shows the execution gone-9:abc as running"),
    (leave_a_worker, Difference.WORKER_GONE, "RQ lists the worker killed-1, which is gone"),
    (take_the_end_away, Difference.ENDLESS, "should end by itself and does not"),
    (leave_a_strange_key, Difference.UNKNOWN, "of-another-version is none that this version writes"),
]


def test_a_pool_that_works_has_nothing_to_mend(damaged: Damaged):
    assert damaged.found() == {}


def test_damage_of_every_kind_is_found_said_and_mended_and_the_study_goes_on(damaged: Damaged):
    """One after another, on one pool: after each it is as it was."""
    for harm, kind, words in DAMAGE:
        harm(damaged)
        found = damaged.found()
        assert set(found) == {kind} and words in found[kind], harm.__name__
        damaged.fix()
        assert damaged.states() == [RUNNING, WAITING], f"{harm.__name__}: nothing was ended, nothing was started"
        assert damaged.found() == {}, harm.__name__
    damaged.pool.restart_coordinator()  # on a busy host the old one's leadership ran out meanwhile
    damaged.pool.drive(damaged.handle)
    assert damaged.states() == [COMPLETE, COMPLETE]
    assert keys_of(damaged.redis, damaged.names.pool).get(damaged.names.waiting) is None


def test_a_trial_whose_worker_is_gone_is_failed_as_lost_and_tried_again(damaged: Damaged):
    lose_the_lease(damaged)
    assert set(damaged.found()) >= {Difference.NOT_HELD}
    damaged.mender.fix(damaged.mender.look())
    assert damaged.states()[0] == FAIL and "went away" in str(lost_reason(damaged.handle.trials[0]))
    damaged.worker.running.clear()
    damaged.pool.drive(damaged.handle)
    assert damaged.mender.look() == []
    assert [trial.state for trial in damaged.handle.study.trials] == [FAIL, COMPLETE, COMPLETE]


def test_what_an_ended_submission_left_is_ended(damaged: Damaged):
    """Nobody tends it any more: a row that was changed by hand, or a database that was restored."""
    catalog = Catalog(damaged.pool.pool.storage)
    catalog.set_submission_state(damaged.handle.id, SubmissionState.DONE, "", expected=None)
    damaged.redis.delete(damaged.names.live(damaged.job_id(0)))
    findings = damaged.mender.look()
    assert {finding.kind for finding in findings if finding.trial} == {Difference.LEFT_OVER}
    damaged.mender.fix(findings)
    assert damaged.states() == [FAIL, FAIL]
    assert damaged.mender.look() == []


def test_a_redis_that_has_just_come_back_says_nothing_of_who_runs_what(damaged: Damaged):
    """Workers write their leases again first."""
    lose_the_lease(damaged)
    damaged.mender.pause_s = 1e9
    assert Difference.NOT_HELD not in damaged.found()


def test_a_step_that_is_made_between_the_two_looks_is_no_difference(damaged: Damaged):
    lose_the_list(damaged)
    first = damaged.mender.look()
    assert first
    damaged.pool.reconcile()
    assert damaged.mender.confirm(first) == []


def test_whoever_leads_is_not_disturbed_and_where_nobody_does_it_is_mended_too(damaged: Damaged):
    lose_the_list(damaged)
    epoch = damaged.redis.get(damaged.names.leader)
    damaged.fix()
    assert damaged.redis.get(damaged.names.leader) == epoch
    lose_the_list(damaged)
    damaged.redis.delete(damaged.names.leader)
    damaged.fix()
    assert damaged.redis.lrange(damaged.names.waiting, 0, -1) == [damaged.job_id(1).encode()]


def test_a_trial_that_a_worker_took_meanwhile_is_not_enqueued_a_second_time(damaged: Damaged):
    lose_the_list(damaged)
    findings = damaged.mender.look()
    damaged.pool.reconcile()
    taken = damaged.pool.workers[1].take()
    assert taken is not None
    assert begin(damaged.redis, damaged.names.pool, damaged.job_id(1), damaged.pool.workers[1].name, 600)
    damaged.mender.fix(findings)
    assert damaged.redis.lrange(damaged.names.waiting, 0, -1) == []


# ---- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def options(damaged: Damaged, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    settings = damaged.pool.settings
    monkeypatch.setenv("VRAMPOOL_SECRET", SECRET)
    monkeypatch.setenv("VRAMPOOL_LEASE_TTL_S", "0.1")
    monkeypatch.setattr("vrampool.consistency.Mender.pause_s", 0.0, raising=False)
    monkeypatch.setattr("vrampool.cli.check.time.sleep", lambda _pause_s: None)
    return ["status", "--redis", str(settings.redis), "--storage", str(settings.storage), "--pool", settings.pool]


def test_the_command_says_what_it_would_mend_and_mends_it(
    damaged: Damaged, options: list[str], capsys: pytest.CaptureFixture[str]
):
    agree = call(capsys, *options, "--check")
    assert (agree.code, agree.out) == (0, "storage and Redis agree\n")
    lose_the_list(damaged)
    leave_a_worker(damaged)
    would = call(capsys, *options, "--check")
    assert would.code == 1
    assert f"{damaged.handle.study_name}/1 waits, but is in no list; would enqueue it" in would.out
    assert "2 found; `vrampool status --check --fix` mends them" in would.out
    assert "looked at again" in would.err
    assert damaged.redis.lrange(damaged.names.waiting, 0, -1) == [], "to look changes nothing"
    told = call(capsys, *options, "--check", "--json")
    assert told.code == 1 and {item["kind"] for item in told.json["findings"]} == {"not queued", "worker gone"}
    mended = call(capsys, *options, "--check", "--fix")
    assert mended.code == 0 and "in no list; done: enqueue it" in mended.out and "2 mended" in mended.out
    assert damaged.redis.lrange(damaged.names.waiting, 0, -1) == [damaged.job_id(1).encode()]


def test_fix_alone_is_refused(options: list[str], capsys: pytest.CaptureFixture[str]):
    refused = call(capsys, *options, "--fix")
    assert refused.code == 2 and "give both" in refused.err


def test_without_a_pool_it_says_so(tmp_path, capsys: pytest.CaptureFixture[str]):
    missing = call(capsys, "status", "--check", "--state-dir", tmp_path)
    assert missing.code == 2 and "no pool runs" in missing.err
