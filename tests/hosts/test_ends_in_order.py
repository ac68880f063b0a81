"""A host is told to end, and has enough time for it, or not (A42)."""

from __future__ import annotations

import time

import psutil
import pytest
from hosts.conftest import MakeHosts
from hosts.host import WORKER
from hosts.lasting import runs_one
from hosts.many import ManyHosts
from hosts.time_passes import last
from optuna.trial import TrialState
from recovery.processes import lives
from support.waiting import until

from vrampool.messages import EndKind
from vrampool.storage import attempt_of, lost_reason

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL


@pytest.fixture
def pool(make_hosts: MakeHosts) -> ManyHosts:
    made = make_hosts("h1", "h2", grace_s=6.0, max_trials=2)
    made["h2"].coordinator()
    made["h1"].worker()
    made["h1"].await_ready()
    return made


def test_with_enough_time_a_short_trial_ends_and_a_long_one_is_handed_back_at_no_charge(pool: ManyHosts):
    """A42. Nothing more is taken; the long one goes on elsewhere at once, not when a lease has run out."""
    short = pool.submit("wait_at_gate", 1)
    pool.await_note("waiting", 0)
    short_log, short_gate = pool.log, pool.gate
    pool.begin(pool.folder / "h1")
    long = pool.submit("wait_at_gate", 1, max_infra_retries=0)
    child = psutil.Process(pool.await_note("waiting", 0))
    supervisor = pool["h1"].process(WORKER)
    tree = supervisor.children(recursive=True)
    began_s = time.monotonic()
    supervisor.terminate()
    until(lambda: pool["h1"].state() == "draining", what="a worker that drains")
    later = pool.submit("one", 1)
    pool["h2"].worker()
    short_gate.touch()
    assert [trial.state for trial in pool.await_end(short)] == [COMPLETE]
    assert pool.host_of(pool.trials(short)[0]) == "h1" and short_log.times("ended") == {0: 1}
    assert supervisor.wait(30) == 0
    assert time.monotonic() - began_s < 6.0 + 5.0
    assert not lives(child) and not [process for process in tree if lives(process)]
    ended_s = time.monotonic()
    pool.await_note("started", 1)
    assert time.monotonic() - ended_s < 5
    pool.open_gate()
    first, second = pool.await_end(long)
    facts = attempt_of(first)
    assert facts is not None and (first.state, facts.end) == (FAIL, EndKind.PREEMPTED)
    assert (second.state, pool.host_of(second)) == (COMPLETE, "h2")
    (trial,) = pool.await_end(later)
    assert pool.host_of(trial) == "h2", "it was taken by a worker that was told to end"


def test_without_enough_time_the_trial_is_lost_with_its_host_and_tried_again(pool: ManyHosts):
    """Kubernetes kills whoever is not gone after its own grace period."""
    pool["h2"].worker()
    pool["h2"].await_ready()
    handle = pool.submit("wait_at_gate", 2, vram="200MiB", max_infra_retries=1)
    pool.await_note("waiting", 0)
    pool.await_note("waiting", 1)
    victim = next(trial for trial in pool.await_running(handle, 2) if pool.host_of(trial) == "h1")
    pool["h1"].process(WORKER).terminate()
    until(lambda: pool["h1"].state() == "draining", what="a worker that drains")
    last(0.5)
    died_s = time.monotonic()
    pool["h1"].die()
    pool.open_gate()
    pool.await_note("started", 2)
    assert time.monotonic() - died_s < 15
    trials = pool.await_end(handle)
    assert sorted(trial.state.name for trial in trials) == ["COMPLETE", "COMPLETE", "FAIL"]
    assert "went away without a word" in (lost_reason(trials[victim.number]) or "")
    assert pool.log.times("started") == {0: 1, 1: 1, 2: 1}
    runs_one(pool)
