"""Hosts that are not alike: another version of the code, a wrong clock, a name and pids that were there before."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hosts.conftest import MakeHosts
from hosts.lasting import runs_one
from hosts.skewed_clock import skew
from optuna.trial import TrialState
from support.waiting import until

from vrampool.storage import lost_reason

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL
CODE = "import os\n\n\ndef objective(trial):\n    return {value}\n"


def test_a_host_with_other_source_code_takes_no_trial_and_why_says_so(make_hosts: MakeHosts, tmp_path: Path):
    """The file is there on both hosts, under one path; one has not been updated."""
    new, old = tmp_path / "task.py", tmp_path / "old.py"
    new.write_text(CODE.format(value=2.0))
    old.write_text(CODE.format(value=1.0))
    hosts = make_hosts("h1", "h2")
    hosts["h1"].files = {new: old}
    hosts["h1"].coordinator()
    hosts["h1"].worker()
    stale = hosts["h1"].await_ready()
    handle = hosts.submit(f"{new}:objective", 3)
    said = until(
        lambda: next((row for row in hosts["h1"].records() if handle.id in row.refused), None), what="a refusal"
    )
    assert "other source code" in said.refused[handle.id]
    why = hosts["h2"].run("why", handle.study_name)
    assert "other source code" in why.stdout, why.stdout + why.stderr
    assert [trial.state for trial in hosts.trials(handle)] == [TrialState.WAITING]
    hosts["h2"].worker()
    trials = hosts.await_end(handle)
    assert [(trial.state, trial.value, hosts.host_of(trial)) for trial in trials] == [(COMPLETE, 2.0, "h2")] * 3
    assert hosts["h1"].records()[0].name == stale.name, "it goes on with whatever it can run"


def test_wrong_clocks_lose_no_lease_end_no_study_and_stop_no_command(make_hosts: MakeHosts, tmp_path: Path):
    """One host is an hour ahead, one an hour behind: leases end by Redis's clock, time limits by the database's."""
    hosts = make_hosts("h1", "h2")
    hosts["h1"].worker(env=skew(tmp_path, 3600))
    hosts["h2"].worker(env=skew(tmp_path, -3600))
    hosts["h2"].coordinator(env=skew(tmp_path, -3600))
    hosts["h1"].coordinator(env=skew(tmp_path, 3600))
    for host in hosts.hosts.values():
        host.await_ready()
    ahead = hosts["h1"].records()[0]
    assert 3500 < ahead.beat_at - time.time() < 3700, "its clock is not wrong"
    # An hour behind it would never end, an hour ahead at once.
    endless = hosts.submit("search", 1000, timeout=4.0, vram="60MiB", study_name="limited")
    began_s = time.monotonic()
    hosts.await_end(endless, limit_s=40)
    assert time.monotonic() - began_s > 3.5
    assert hosts.state(endless) == "stopped" and "timeout 4 s" in endless.reason
    assert sum(trial.state.is_finished() for trial in hosts.trials(endless)) > 2
    # A death is noticed as fast as ever.
    hosts.begin(tmp_path)
    handle = hosts.submit("wait_at_gate", 1)
    hosts.await_note("waiting", 0)
    (first,) = hosts.await_running(handle)
    died_s = time.monotonic()
    hosts[hosts.host_of(first)].the_worker().kill()
    hosts.await_note("started", 1)
    assert time.monotonic() - died_s < 15
    hosts.open_gate()
    assert [trial.state for trial in hosts.await_end(handle)] == [FAIL, COMPLETE]
    record = hosts["h1"].await_ready()
    assert hosts["h2"].run("pause", record.name, env=skew(tmp_path, -3600)).returncode == 0
    until(lambda: [row.state for row in hosts["h1"].records() if row.name == record.name] == ["paused"])


def test_a_host_that_comes_back_with_its_name_and_its_pids_is_another_worker(make_hosts: MakeHosts):
    """A container: its name stays, and its processes count from 1 again."""
    hosts = make_hosts("h1", "h2")
    hosts["h2"].coordinator()
    hosts["h1"].wrapper = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    hosts["h1"].worker()

    def alone():
        found = [record for record in hosts["h1"].records() if record.state == "ready" and record.free_bytes > 0]
        return found[0] if found else None

    first = until(alone, what="a worker", timeout_s=30)
    assert first.pid < 100
    handle = hosts.submit("wait_at_gate", 1)
    hosts.await_note("waiting", 0)
    hosts["h1"].die()
    hosts["h1"].again("worker")
    hosts.await_note("started", 1, limit_s=30)
    second = until(lambda: [row for row in hosts["h1"].records() if row.name != first.name], what="its record")[0]
    assert (second.host, second.pid, second.device_id) == (first.host, first.pid, first.device_id)
    hosts.open_gate()
    lost, done = hosts.await_end(handle)
    assert (lost.state, done.state) == (FAIL, COMPLETE)
    assert lost_reason(lost) == f"worker {first.name} went away without a word"
    until(lambda: len(hosts["h1"].records()) == 1, what="the end of the old one's record")
    runs_one(hosts)
