"""One process of a pool dies while a trial runs: nothing is lost, nothing runs twice, and all goes on by itself."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext

import psutil
import pytest
from optuna.trial import FrozenTrial, TrialState
from recovery.hardy import HardyPool
from recovery.processes import frozen, lives
from support.waiting import until

import vrampool
from vrampool.messages import EndKind
from vrampool.storage import attempt_of, claimed_by, lost_reason, mark_of

COMPLETE, FAIL, RUNNING, WAITING = TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING


def tried_twice(pool: HardyPool, handle: vrampool.Handle) -> tuple[FrozenTrial, FrozenTrial]:
    """Wait for the end; the first attempt failed, the second did the same work, each ran once."""
    pool.open_gate()
    first, second = pool.await_end(handle)
    assert (first.state, second.state) == (FAIL, COMPLETE)
    assert first.params == second.params != {}
    assert second.value == second.params["x"]
    mark = mark_of(second)
    assert mark is not None
    assert (mark.root, mark.retry_of, mark.attempt) == (0, 0, 2)
    assert second.system_attrs["failed_trial"] == 0
    assert second.system_attrs["retry_history"] == [0]
    assert pool.log.times("started") == {0: 1, 1: 1}
    assert handle.progress().counts == {"COMPLETE": 1}
    pool.run_one()
    return first, second


def untouched(pool: HardyPool, handle: vrampool.Handle) -> None:
    """Wait for the end of a trial that ran through, and see that the pool goes on."""
    pool.open_gate()
    (trial,) = pool.await_end(handle)
    assert (trial.state, trial.value) == (COMPLETE, trial.params["x"])
    assert pool.log.times("started") == pool.log.times("ended") == {0: 1}
    pool.run_one()


# ---- A23: the trial's own processes, and its worker ----------------------------------------------------


def test_a_killed_child_is_tried_again(pool: HardyPool):
    """A23 (iii)."""
    handle = pool.submit("wait_at_gate")
    os.kill(pool.await_note("waiting", 0), signal.SIGKILL)
    first, _ = tried_twice(pool, handle)
    facts = attempt_of(first)
    assert facts is not None and (facts.end, facts.signal) == (EndKind.CRASHED, 9)


def test_a_killed_keeper_takes_its_trial_along_and_that_is_tried_again(pool: HardyPool):
    handle = pool.submit("wait_at_gate")
    trial = psutil.Process(pool.await_note("waiting", 0))
    pool.processes.keeper_of(trial.pid).kill()
    until(lambda: not lives(trial), what="the end of the trial below it")
    first, _ = tried_twice(pool, handle)
    facts = attempt_of(first)
    assert facts is not None and facts.end == EndKind.CRASHED


@pytest.mark.parametrize("with_child", [False, True], ids=["worker-only", "worker-and-child"])
def test_a_killed_worker_s_trial_is_lost_and_tried_again(pool: HardyPool, with_child: bool):
    """A23 (i), (ii): the child is gone before the retry begins, and the cause names the worker."""
    handle = pool.submit("wait_at_gate")
    trial = psutil.Process(pool.await_note("waiting", 0))
    worker = claimed_by(pool.trials(handle)[0])
    with frozen(pool.processes.worker()) if with_child else nullcontext():
        if with_child:
            os.kill(trial.pid, signal.SIGKILL)
        pool.processes.kill("worker")
    pool.await_note("started", 1)
    assert not lives(trial), "the first attempt's process lives beside the second"
    first, second = tried_twice(pool, handle)
    assert lost_reason(first) == f"worker {worker} went away without a word"
    assert claimed_by(second) not in (None, worker)
    assert first.intermediate_values == second.intermediate_values == {0: first.params["x"]}


def test_a_killed_host_loses_nothing_and_up_goes_on(pool: HardyPool):
    """A23 (iv): nobody restarts anything; what runs is handed back, and waits for the next `vrampool up`."""
    handle = pool.submit("wait_at_gate")
    pool.await_note("waiting", 0)
    everybody = pool.processes.note_all()
    pool.processes.kill("host")
    pool.up()
    until(lambda: not any(map(lives, everybody)), what="an end of all that the old host had started")
    first, _ = tried_twice(pool, handle)
    facts = attempt_of(first)
    assert facts is not None and facts.end == EndKind.PREEMPTED, "handed back, at no charge"


# ---- the others ----------------------------------------------------------------------------------------


def test_a_killed_supervisor_costs_no_trial_more_than_the_grace(pool: HardyPool):
    """Its worker drains; a trial that takes longer is handed back and runs again."""
    handle = pool.submit("wait_at_gate")
    pool.await_note("waiting", 0)
    worker = pool.processes.worker()
    pool.processes.kill("supervisor")
    first, _ = tried_twice_after(pool, handle, worker)
    facts = attempt_of(first)
    assert facts is not None and facts.end == EndKind.PREEMPTED


def tried_twice_after(
    pool: HardyPool, handle: vrampool.Handle, worker: psutil.Process
) -> tuple[FrozenTrial, FrozenTrial]:
    until(lambda: not lives(worker), what="the end of the old worker")
    return tried_twice(pool, handle)


def test_a_killed_coordinator_is_followed_by_another_and_the_trial_runs_on(pool: HardyPool):
    handle = pool.submit("wait_at_gate")
    pool.await_note("waiting", 0)
    pool.processes.kill("coordinator")
    untouched(pool, handle)


def test_a_killed_valkey_comes_back_with_its_data_and_the_trial_runs_on(pool: HardyPool):
    handle = pool.submit("wait_at_gate")
    pool.await_note("waiting", 0)
    pool.processes.kill("valkey")
    untouched(pool, handle)


def test_a_killed_watcher_of_valkey_is_no_different(pool: HardyPool):
    handle = pool.submit("wait_at_gate")
    pool.await_note("waiting", 0)
    pool.processes.kill("watcher")
    untouched(pool, handle)
