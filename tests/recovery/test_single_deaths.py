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
    """Wait for the second attempt and its end; it did the same work as the first, and each ran once."""
    pool.await_note("started", 1)
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


# ---- the others ----------------------------------------------------------------------------------------


def test_a_killed_supervisor_costs_no_trial_more_than_the_grace(pool: HardyPool):
    """Its worker drains, and hands back what takes longer; the next supervisor's worker gets the device after it."""
    handle = pool.submit("wait_at_gate")
    pool.await_note("waiting", 0)
    worker = pool.processes.worker()
    pool.processes.kill("supervisor")
    until(lambda: "waiting for a worker of before" in pool.log_of("worker"), what="a supervisor that waits")
    until(lambda: not lives(worker), what="the end of the old worker")
    first, _ = tried_twice(pool, handle)
    facts = attempt_of(first)
    assert facts is not None and facts.end == EndKind.PREEMPTED, "at no charge"


def test_up_right_after_the_host_was_killed_returns_at_once_and_takes_over_what_runs(pool: HardyPool):
    """A23 (iv). The old worker holds the device while it drains; what it hands back runs under the new one."""
    handle = pool.submit("wait_at_gate")
    pool.await_note("waiting", 0)
    old = pool.processes.note_all()
    pool.processes.kill("host")
    pool.up()
    first, _ = tried_twice(pool, handle)
    facts = attempt_of(first)
    assert facts is not None and facts.end == EndKind.PREEMPTED
    until(lambda: not any(map(lives, old)), what="an end of the old pool's processes")


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
