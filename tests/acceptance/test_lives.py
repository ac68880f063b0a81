"""How long pools live, and what is left of them: nothing, whoever ends first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from optuna.trial import TrialState
from support.commands import call
from support.pools import FAST, LivePool, check_invariants, facts_of, is_gone, processes_of
from support.waiting import until

import vrampool

OBJECTIVES = Path(__file__).with_name("objectives.py")


def test_an_owned_pool_leaves_no_process_and_its_studies_behind(make_pool):
    """`with Pool()`, twice in one folder: the second finds what the first has done."""
    made = make_pool()
    made.run(f"{OBJECTIVES}:draw", 3, study_name="kept")
    check_invariants(made)
    settings = made.pool.settings
    processes = made.processes()
    assert len(processes) >= 8, "host, watch, Valkey, coordinator, supervisor, worker, keeper, spare"
    made.pool.close()
    assert [process for process in processes if not is_gone(process)] == []
    assert processes_of(settings.state_dir) == []
    with vrampool.Pool(**{**FAST, "state_dir": settings.state_dir}) as again:
        assert len(again.attach("kept").trials) == 3
        again.submit(f"{OBJECTIVES}:draw", 2, study_name="kept", vram="200MiB").wait(30)
        assert [trial.state for trial in again.attach("kept").study.trials] == [TrialState.COMPLETE] * 5
    assert processes_of(settings.state_dir) == []


def test_an_owned_pool_ends_with_an_owner_that_is_killed(tmp_path, capsys):
    """Valkey, coordinator, worker, spare and trial: none outlives a SIGKILL of the program."""
    state = tmp_path / "state"
    env = {f"VRAMPOOL_{name.upper()}": str(value) for name, value in FAST.items()} | {
        "VRAMPOOL_STATE_DIR": str(state),
        "VRAMPOOL_SHARE": "1",
        "VRAMPOOL_GRACE_S": "0.2",
    }
    program = f"""
import vrampool
with vrampool.Pool() as pool:
    gate = {str(tmp_path / "gate")!r}
    pool.submit({f"{OBJECTIVES}:wait_for_file"!r}, 3, vram="200MiB", study_name="running", env={{"GATE": gate}}).wait()
"""
    owner = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **env}, stderr=subprocess.DEVNULL)
    at = ("--state-dir", state)

    def running() -> bool:
        done = call(capsys, "status", "running", "--json", *at)
        return done.code == 0 and done.json["studies"][0]["trials"] != []

    try:
        until(running, what="a running trial")
    finally:
        owner.kill()
        owner.wait()
    until(lambda: not processes_of(state), what="the end of all processes")


def test_a_pool_that_was_started_on_first_use_outlives_the_notebook_and_ends_when_idle(tmp_path):
    """The trials go on without it. (It ends after ten minutes of idleness; here after one second.)"""
    state = tmp_path / "state"
    env = {f"VRAMPOOL_{name.upper()}": str(value) for name, value in FAST.items()} | {
        "VRAMPOOL_STATE_DIR": str(state),
        "VRAMPOOL_SHARE": "1",
        "VRAMPOOL_IDLE_EXIT_S": "1",
    }
    gate = tmp_path / "gate"
    program = f"""
import os, signal, vrampool
pool = vrampool.Pool()
pool.submit({f"{OBJECTIVES}:wait_for_file"!r}, 3, vram="200MiB", study_name="goes-on", env={{"GATE": {str(gate)!r}}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    notebook = subprocess.run([sys.executable, "-c", program], env={**os.environ, **env}, capture_output=True)
    assert notebook.returncode == -signal.SIGKILL, notebook.stderr
    pool = vrampool.Pool(state_dir=state)
    handle = pool.attach("goes-on")
    until(lambda: handle.progress().running, what="a running trial")
    gate.touch()
    assert [trial.state for trial in handle.wait(30).trials] == [TrialState.COMPLETE] * 3
    pool.close()
    until(lambda: not processes_of(state), what="the end of the idle pool")


def test_a_worker_that_is_killed_takes_its_trials_along_and_they_are_run_again(make_pool, tmp_path):
    """Its child dies with it; the supervisor starts another; the trial is lost, then complete in its second attempt."""
    made: LivePool = make_pool()
    gate = tmp_path / "gate"
    handle = made.submit(f"{OBJECTIVES}:wait_for_file", env={"GATE": str(gate)})
    until(lambda: handle.progress().running, what="a running trial")
    worker = made.device().pid
    children = psutil.Process(worker).children(recursive=True)
    assert children
    os.kill(worker, signal.SIGKILL)
    until(lambda: all(map(is_gone, children)), what="the end of its children")
    gate.touch()
    first, second = handle.wait(40).trials
    assert (first.state, second.state) == (TrialState.FAIL, TrialState.COMPLETE)
    assert "went away" in first.user_attrs["vrampool:lost"]
    assert facts_of(second).worker != first.user_attrs["vrampool:lost"].split()[1]
    until(lambda: [device.pid for device in made.devices()] not in ([], [worker]), what="another worker")
    check_invariants(made)


def test_a_coordinator_that_is_killed_is_replaced_and_nothing_is_run_twice(pool: LivePool, tmp_path):
    gate = tmp_path / "gate"
    handle = pool.submit(f"{OBJECTIVES}:wait_for_file", 6, env={"GATE": str(gate)})
    until(lambda: handle.progress().running, what="a running trial")
    os.kill(pool.pids()["coordinator"], signal.SIGKILL)
    gate.touch()
    assert [trial.state for trial in handle.wait(60).trials] == [TrialState.COMPLETE] * 6
    check_invariants(pool)
