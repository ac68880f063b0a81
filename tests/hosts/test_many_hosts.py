"""Two hosts and a hub, in network namespaces: trials go where they fit, and a pulled cable costs one attempt."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from hosts.chaos import Chaos, Fault, draw
from hosts.many import OBJECTIVES, ManyHosts
from optuna.trial import TrialState
from recovery.processes import lives
from support.waiting import until

from vrampool.storage import lost_reason

COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL

#: A notebook on whatever host: all it knows are two addresses, and the secret.
SCRIPT = """
import os, sys, vrampool
pool = vrampool.Pool(redis=os.environ["VRAMPOOL_REDIS"], storage=os.environ["VRAMPOOL_STORAGE"])
handle = pool.submit(sys.argv[1], 2, vram="60MiB", study_name=sys.argv[2], env={"EXECUTION_LOG": sys.argv[3]})
handle.wait(60)
open(sys.argv[4], "w").write(f"{len(handle.trials)} {handle.best_value}")
"""


def test_a_trial_goes_only_where_it_fits(hosts: ManyHosts):
    """One host has room for 300 MiB, the other for 150; the larger trials never see the smaller host."""
    large = hosts.submit("one", 3, vram="200MiB")
    small = hosts.submit("wait_at_gate", 3, vram="100MiB")
    running = hosts.await_running(small, 3)
    assert {hosts.host_of(trial) for trial in running} == {"h1", "h2"}
    hosts.open_gate()
    for handle in (large, small):
        trials = hosts.await_end(handle)
        assert [trial.state for trial in trials] == [COMPLETE] * 3
    assert {hosts.host_of(trial) for trial in hosts.trials(large)} == {"h1"}


def test_the_largest_device_is_known_whichever_host_told_of_its_own_last(hosts: ManyHosts):
    """Every host has a device called "cpu"."""
    registry = hosts.pool._open().registry
    for record in (hosts["h2"].await_ready(), hosts["h1"].await_ready(), hosts["h2"].await_ready()):
        registry.beat(record, hosts.pool.settings.lease_ttl_s)
        assert registry.largest_budget(0) == 300 * 1024**2


@pytest.mark.slow
def test_a_notebook_on_any_host_submits_and_waits(hosts: ManyHosts, tmp_path: Path):
    answer = tmp_path / "answer"
    script = hosts["h2"].start_script(SCRIPT, f"{OBJECTIVES}:one", "from-h2", str(hosts.log.path), str(answer))
    assert script.wait(60) == 0, (hosts["h2"].state_dir / "script.log").read_text()
    assert answer.read_text() == "2 1.0"


@pytest.mark.parametrize("seed", [7])
def test_a_short_schedule_of_faults_loses_and_doubles_nothing(hosts: ManyHosts, seed: int):
    """What is quick to recover from. `make chaos` plays everything, two hundred times."""
    kinds = ["child", "blip", "redis_killed", "connections", "redeliver", "postgres_killed"]
    said: list[str] = []
    faults = [Fault(fault.kind, fault.pause_s / 4) for fault in draw(seed, len(kinds), kinds)]
    tally = Chaos(hosts, faults, seed=seed, n_trials=4, studies=2, step_s=0.03, say=said.append).run()
    assert tally.clean, "\n".join([f"seed {seed}", *said, *tally.lost, *tally.doubled, *tally.broken])
    assert sum(tally.injected.values()) == len(kinds) and tally.roots >= 8


def test_a_cable_that_is_out_for_longer_than_a_lease_costs_one_attempt(hosts: ManyHosts):
    """The trial runs again elsewhere, once. The host that was cut off writes nothing, ends its child, and goes on."""
    handle = hosts.submit("wait_at_gate", 1, vram="100MiB")
    child = psutil.Process(hosts.await_note("waiting", 0))
    (first,) = hosts.await_running(handle)
    cut, other = hosts.host_of(first), {"h1": "h2", "h2": "h1"}[hosts.host_of(first)]
    hosts["h1"].stop("coordinator")  # it must not sit on the host that is cut off
    hosts[other].coordinator()
    worker = hosts[cut].the_worker()
    hosts.network.cut(cut)
    try:
        hosts.await_note("waiting", 1, limit_s=20)
        before = hosts.trials(handle)[0]
        assert (before.state, lives(child)) == (FAIL, True)
        assert "went away without a word" in (lost_reason(before) or "")
    finally:
        hosts.network.heal(cut)
    until(lambda: not lives(child), what="the end of the child that nobody needs any more", timeout_s=20)
    hosts.open_gate()
    first, second = hosts.await_end(handle)
    assert first == before, "it was written to by a host that had lost it"
    assert (second.state, hosts.host_of(second)) == (COMPLETE, other)
    assert hosts.log.times("started") == {0: 1, 1: 1} and hosts.log.times("ended") == {1: 1}
    assert lives(worker), "the worker did not survive"
    record = hosts[cut].await_ready()
    # What it listens to was cut off too: a command reaches it all the same.
    said = hosts[other].run("pause", record.name)
    assert said.returncode == 0, said.stdout + said.stderr
    until(lambda: hosts[cut].state() == "paused", what="a paused worker")
    assert hosts[other].run("resume", record.name).returncode == 0
    hosts[cut].await_ready()
