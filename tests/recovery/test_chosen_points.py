"""A process dies at the worst moment there is: between two writes that belong together.

`test_coordinator_dies` tries every such point of the coordinator in steps; here real processes end.
"""

from __future__ import annotations

import os
import signal

import pytest
from optuna.trial import TrialState
from recovery.conftest import MakePool

from vrampool.storage import mark_of

COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL
pytestmark = pytest.mark.slow


def test_a_coordinator_that_dies_between_a_retry_and_its_job_leaves_one_retry(make_pool: MakePool):
    pool = make_pool(mutants="die_before_enqueueing_a_retry")
    handle = pool.submit("wait_at_gate")
    os.kill(pool.await_note("waiting", 0), signal.SIGKILL)
    pool.await_note("waiting", 1)
    pool.open_gate()
    trials = pool.await_end(handle)
    assert (pool.folder / "died").exists()
    assert [trial.state for trial in trials] == [FAIL, COMPLETE]
    marks = [mark_of(trial) for trial in trials]
    assert [mark.retry_of for mark in marks if mark is not None] == [None, 0]
    assert pool.log.times("ended") == {1: 1}


@pytest.mark.parametrize(
    ("mutant", "states"), [("die_before_telling", [FAIL, COMPLETE]), ("die_after_telling", [COMPLETE])]
)
def test_a_worker_that_dies_around_a_tell_leaves_one_result(make_pool: MakePool, mutant, states):
    """Before it the result is lost with the worker, and the trial runs again; after it nobody runs it again."""
    pool = make_pool(mutants=mutant)
    handle = pool.submit("one")
    trials = pool.await_end(handle)
    assert (pool.folder / "died").exists()
    assert [trial.state for trial in trials] == states
    assert pool.log.times("started") == pool.log.times("ended") == {trial.number: 1 for trial in trials}
    assert handle.progress().counts == {"COMPLETE": 1}
    pool.run_one()
    assert len(pool.trials(handle)) == len(states)
