"""A29: the one thought dead comes back. It writes nothing more, ends its child, and goes on taking trials."""

from __future__ import annotations

import psutil
from optuna.trial import TrialState
from recovery.hardy import HardyPool
from recovery.processes import frozen, lives
from support.waiting import until

from vrampool.storage import claimed_by, lost_reason


def test_a_worker_that_was_frozen_past_its_lease_ends_its_child_writes_nothing_and_goes_on(pool: HardyPool):
    """The child says nothing meanwhile, so only the worker's own look can end it."""
    handle = pool.submit("wait_at_gate")
    child = psutil.Process(pool.await_note("waiting", 0))
    worker = pool.processes.worker()
    name = claimed_by(pool.trials(handle)[0])
    pool.second_worker()
    with frozen(worker):
        pool.await_note("waiting", 1)
        before = pool.trials(handle)[0]
        assert lives(child)
    until(lambda: not lives(child), what="the end of the child that is not needed any more")
    pool.open_gate()
    trials = pool.await_end(handle)
    assert [trial.state for trial in trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert lost_reason(trials[0]) is not None
    assert trials[0] == before, "it wrote to a trial that was not its own any more"
    assert pool.log.times("started") == {0: 1, 1: 1}
    assert pool.log.times("ended") == {1: 1}
    assert lives(worker) and pool.processes.worker().pid == worker.pid, "it did not survive"
    assert "Traceback" not in pool.log_of("worker") + pool.log_of("coordinator")
    takes_trials_again(pool, name)


def takes_trials_again(pool: HardyPool, name: str | None) -> None:
    """The worker of that name runs one of some trials that need all there is of both workers."""
    (pool.gate).unlink()
    handle = pool.submit("wait_at_gate", 6, vram="150MiB")
    until(
        lambda: name in {claimed_by(trial) for trial in pool.trials(handle)},
        what=f"a trial taken by {name}, which came back",
        timeout_s=30,
    )
    pool.open_gate()
    pool.await_end(handle)
