"""The process that submitted a study dies, and the one that owns a pool."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
from optuna.trial import TrialState
from recovery.hardy import OBJECTIVES, SETTINGS, HardyPool
from recovery.processes import Processes, lives
from support.waiting import until

COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL
SCRIPT = """
import sys, vrampool
state_dir, objective, owned = sys.argv[1:4]
pool = vrampool.Pool(state_dir=state_dir, **{settings})
if owned == "owned":
    pool.__enter__()
env = dict(EXECUTION_LOG=sys.argv[4], GATE=sys.argv[5])
pool.submit(objective, 1, vram="96MiB", study_name=sys.argv[6], env=env).wait()
"""


def start(state_dir: Path, folder: Path, name: str, *, owned: bool) -> subprocess.Popen[bytes]:
    """Start a script that submits a study and waits for it."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            SCRIPT.replace("{settings}", repr(SETTINGS)),
            str(state_dir),
            f"{OBJECTIVES}:wait_at_gate",
            "owned" if owned else "attached",
            str(folder / "executions"),
            str(folder / "gate"),
            name,
        ],
        env=dict(os.environ),
    )


def test_a_study_goes_on_when_the_process_that_submitted_it_is_killed(pool: HardyPool, tmp_path: Path):
    """Whoever attaches later finds it."""
    script = start(pool.state_dir, tmp_path, "left-alone", owned=False)
    pool.await_note("waiting", 0)
    script.kill()
    script.wait()
    handle = pool.pool.attach("left-alone")
    pool.open_gate()
    handle.wait(30)
    assert [trial.state for trial in handle.trials] == [COMPLETE]
    assert pool.log.times("started") == {0: 1}


def test_a_pool_ends_with_the_process_that_owns_it_and_a_later_one_goes_on(tmp_path: Path):
    """Nothing of it is left; what ran was handed back, and waits in the state directory."""
    state_dir = tmp_path / "state"
    script = start(state_dir, tmp_path, "owned", owned=True)
    try:
        processes = Processes(state_dir)
        until(lambda: (tmp_path / "executions").exists(), what="a trial that runs", timeout_s=30)
        everybody = processes.note_all()
        assert len(everybody) > 5
    finally:
        script.kill()
        script.wait()
    until(lambda: not any(map(lives, everybody)), what=f"an end of {[p for p in everybody if lives(p)]}", timeout_s=30)
    pool = HardyPool(tmp_path)
    try:
        handle = pool.pool.attach("owned")
        pool.await_note("waiting", 1)
        pool.open_gate()
        assert [trial.state for trial in pool.await_end(handle)] == [FAIL, COMPLETE]
        pool.down()
    finally:
        pool.destroy()
    assert not [process for process in psutil.process_iter() if str(state_dir) in " ".join(_words(process))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
