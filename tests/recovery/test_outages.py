"""Redis or the database is away, comes back, or has forgotten something: what was trained is never trained again."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from optuna.trial import TrialState
from recovery.hardy import HardyPool
from recovery.processes import frozen, lives
from support.waiting import until

from vrampool.queueing.names import Names

COMPLETE = TrialState.COMPLETE


def all_ran_once(pool: HardyPool, handle, n_trials: int) -> None:
    trials = pool.await_end(handle)
    assert [trial.state for trial in trials] == [COMPLETE] * n_trials
    assert pool.log.times("started") == pool.log.times("ended") == dict.fromkeys(range(n_trials), 1)


# ---- A30 -----------------------------------------------------------------------------------------------


@contextmanager
def locked(pool: HardyPool) -> Iterator[None]:
    """Hold the database's write lock, as a writer does that takes long."""
    writer = sqlite3.connect(pool.database, isolation_level=None, timeout=10.0)
    try:
        writer.execute("BEGIN IMMEDIATE")
        yield
    finally:
        writer.execute("ROLLBACK")
        writer.close()


def test_a_database_that_is_locked_when_results_are_told_costs_no_second_run(pool: HardyPool):
    """A30: locked for longer than a lease lives; nobody is taken for dead, and the writes are repeated."""
    handle = pool.submit("wait_at_gate", 8)
    for number in range(4):
        pool.await_note("waiting", number)
    with locked(pool):
        pool.open_gate()
        for number in range(4):
            pool.await_note("ended", number)
        away_s = 1.5 * pool.pool.settings.lease_ttl_s
        since = {device.name: device.beat_at for device in pool.pool.devices()}
        until(
            lambda: all(device.beat_at > since[device.name] + away_s for device in pool.pool.devices()),
            what="beats while the database is locked",
        )
        assert [trial.state for trial in pool.trials(handle)[:4]] == [TrialState.RUNNING] * 4
    all_ran_once(pool, handle, 8)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_database_that_is_locked_for_longer_than_anybody_waits_costs_no_second_run(pool: HardyPool):
    """A30: each call gives up after sixty seconds, and is made again."""
    handle = pool.submit("wait_at_gate", 4)
    for number in range(4):
        pool.await_note("waiting", number)
    with locked(pool):
        pool.open_gate()
        until(lambda: "is tried again" in pool.log_of("worker"), what="a word of the worker", timeout_s=100)
    all_ran_once(pool, handle, 4)


# ---- A34 -----------------------------------------------------------------------------------------------


def test_a_job_that_redis_lost_is_enqueued_again(pool: HardyPool):
    """A34: its record is gone while its id still waits; no job that waits ever ends by itself."""
    names = Names(pool.pool.settings.pool)
    connection = pool.pool.connection
    with pool.frozen_worker():
        handle = pool.submit("one", 2)
        first = pool.await_job().job_id
        assert connection.ttl(names.job(first)) == connection.ttl(names.waiting) == -1
        connection.delete(names.job(first))
    all_ran_once(pool, handle, 2)


# ---- A37 -----------------------------------------------------------------------------------------------


def test_a_valkey_that_comes_back_empty_costs_no_trial(pool: HardyPool):
    """A37 (ii): one runs, others wait; none is lost, none runs twice, and commands reach the worker again."""
    handle = pool.submit("wait_at_gate", 3, vram="450MiB")
    child = psutil.Process(pool.await_note("waiting", 0))
    pool.await_waiting(handle)
    with frozen(pool.processes.host()):  # so that it is not started again before its data are gone
        watcher = pool.processes.watcher()
        pool.processes.kill("valkey")
        until(lambda: not lives(watcher), what="the end of its watcher")
        shutil.rmtree(pool.state_dir / "valkey" / "appendonlydir")
    until(pool.pool.devices, what="a worker that tells of itself again", timeout_s=30)
    assert lives(child)
    pool.open_gate()
    all_ran_once(pool, handle, 3)
    pool.run_one()


@contextmanager
def no_valkey(pool: HardyPool) -> Iterator[None]:
    """Kill Valkey and keep it from being started again: its folder looks taken."""
    path = pool.state_dir / "valkey" / "valkey.lock"
    with frozen(pool.processes.host()):
        watcher = pool.processes.watcher()
        pool.processes.kill("valkey")
        until(lambda: not lives(watcher), what="the end of its watcher")
        lock = os.open(path, os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


@pytest.mark.slow
def test_processes_that_start_while_valkey_is_away_wait_for_it(pool: HardyPool):
    """The coordinator and the worker die too: started again they find no Redis, and must not give up."""
    handle = pool.submit("wait_at_gate")
    pool.await_note("waiting", 0)
    host = pool.processes.host()
    coordinator, worker = pool.processes.coordinator(), pool.processes.worker()
    with no_valkey(pool):
        coordinator.kill()
        worker.kill()
        until(
            lambda: "tried again in" in pool.log_of("coordinator") and "tried again in" in pool.log_of("worker"),
            what="a coordinator and a worker that wait",
            timeout_s=30,
        )
    pool.open_gate()
    trials = pool.await_end(handle)
    assert [trial.state for trial in trials] == [TrialState.FAIL, COMPLETE]
    assert pool.log.times("started") == {0: 1, 1: 1}
    assert pool.processes.host() == host, "the pool ended and was not the same any more"


# ---- A49 -----------------------------------------------------------------------------------------------


def test_an_objective_that_stops_its_whole_interpreter_is_not_taken_for_dead(pool: HardyPool):
    """A49: four seconds without a thread of the child running, at a lease of 1.5."""
    handle = pool.submit("hold_the_interpreter")
    all_ran_once(pool, handle, 1)
