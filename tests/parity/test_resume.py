"""Going on: a study that is resumed, a notebook that was killed, a pool that was killed with everything in it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
from optuna.trial import TrialState
from parity import objectives
from support.pools import FAST, LivePool, processes_of
from support.waiting import until

import vrampool
from vrampool.errors import StudyError
from vrampool.local.starting import stop_record
from vrampool.local.state import StateDir
from vrampool.settings import load_settings
from vrampool.storage import cancelled_reason, mark_of

TESTS = Path(__file__).parents[1]
OBJECTIVES = Path(objectives.__file__)
COMPLETE = TrialState.COMPLETE


# ---- resuming a study --------------------------------------------------------------------------------


def command(state_dir: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command `vrampool`, for the pool of a state directory."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VRAMPOOL_")}
    environment |= {
        f"VRAMPOOL_{name.upper()}": str(int(value) if value is True else value) for name, value in FAST.items()
    }
    return subprocess.run(
        [sys.executable, "-m", "vrampool", words[0], "--state-dir", str(state_dir), *words[1:]],
        env=environment, capture_output=True, text=True, timeout=100, check=check,
    )  # fmt: skip


def test_trials_adds_and_total_fills_up(pool: LivePool) -> None:
    """`--trials N` adds N to the study that is there, `--total N` completes it to N; a full one gets none."""

    def run(*words: str) -> int:
        words = (f"{OBJECTIVES}:number", "--study", "resumed", "--vram", "100MiB", "--json", *words)
        done = command(pool.state_dir, "run", *words, check=False)
        assert done.returncode in (0, 1), done.stderr
        return sum(json.loads(done.stdout.splitlines()[-1])["counts"].values())

    assert run("--trials", "2") == 2
    assert run("--trials", "1") == 1
    assert run("--total", "5") == 2
    assert run("--total", "5") == 0
    study = optuna.load_study(study_name="resumed", storage=pool.pool.storage)
    assert [trial.value for trial in study.trials] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_study_is_gone_on_with_in_its_own_direction(pool: LivePool) -> None:
    pool.run(objectives.number, 1, study_name="upward", direction="maximize")
    again = pool.run(objectives.number, 1, study_name="upward")
    assert again.best_value == 1.0 and len(again.study.trials) == 2
    with pytest.raises(StudyError, match="exists with direction maximize, not minimize"):
        pool.submit(objectives.number, 1, study_name="upward", direction="minimize")


def test_a_progress_with_a_total_is_of_what_is_to_come(pool: LivePool) -> None:
    pool.run(objectives.number, 2, study_name="total")
    progress = pool.run(objectives.number, None, total=3, study_name="total").progress()
    assert (progress.finished, progress.wanted) == (1, 1)


# ---- a notebook that is killed -----------------------------------------------------------------------


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """Where a detached pool lives; whatever still runs there at the end is ended."""
    path = tmp_path / "state"
    yield path
    record = StateDir(load_settings({"state_dir": path}, env={})).read()
    if record is not None:
        stop_record(record, 30)
    until(lambda: not processes_of(path), what=f"an end of {processes_of(path)}", timeout_s=40)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Trials of `counted` wait for this file."""
    return tmp_path / "gate"


def script(state_dir: Path, gate: Path, body: str) -> subprocess.Popen[str]:
    """Run a user's script, in a process group of its own."""
    head = f"""
        import os, pathlib, sys, time, warnings
        sys.path.insert(0, {str(TESTS)!r})
        import vrampool
        from parity import objectives
        settings = dict({FAST!r}, state_dir=pathlib.Path({str(state_dir)!r}), idle_exit_s=60.0)
        env = {{"PARITY_GATE": {str(gate)!r}}}
    """
    text = textwrap.dedent(head) + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-u", "-c", text], stdout=subprocess.PIPE, text=True, start_new_session=True
    )


SUBMIT_AND_WAIT = """
    pool = vrampool.Pool(**settings)
    handle = pool.submit(objectives.counted, 6, study_name="kept", vram="100MiB", max_concurrent_trials=3, env=env)
    print("submitted", flush=True)
    try:
        handle.wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        time.sleep(600)
"""


def runs_of(gate: Path) -> Counter[int]:
    """How often each trial began, as the trials themselves have written it down."""
    log = gate.with_suffix(".log")
    return Counter(int(line) for line in log.read_text().split()) if log.exists() else Counter()


def line_of(process: subprocess.Popen[str], expected: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == expected


def test_a_notebook_is_interrupted_killed_and_attached_again(state_dir: Path, gate: Path) -> None:
    """A45: Ctrl-C is for the waiting cell alone; the pool, its workers and its trials outlive the process."""
    notebook = script(state_dir, gate, SUBMIT_AND_WAIT)
    try:
        line_of(notebook, "submitted")
        until(lambda: len(runs_of(gate)) == 3, what="three running trials", timeout_s=60)
        at_s = time.monotonic()
        os.killpg(notebook.pid, signal.SIGINT)
        line_of(notebook, "interrupted")
        assert time.monotonic() - at_s < 1.0
    finally:
        os.killpg(notebook.pid, signal.SIGKILL)
        notebook.wait()
    with_new_kernel = vrampool.Pool(state_dir=state_dir)
    handle = with_new_kernel.attach("kept")
    assert handle.progress().running == 3, "nobody has told the trials"
    gate.touch()
    handle.wait(60)
    assert handle.state == "done"
    assert [trial.state for trial in handle.study.trials] == [COMPLETE] * 6
    assert runs_of(gate) == Counter(range(6)), "none twice"
    assert handle.best_value == 0.0 and len(handle.trials_dataframe()) == 6
    with pytest.raises(StudyError, match="known: kept"):
        with_new_kernel.attach("other")
    with_new_kernel.close()


def test_a_submission_is_cancelled_from_another_process(state_dir: Path, gate: Path) -> None:
    """A45: what waits leaves the queue, what runs is ended, nothing is RUNNING."""
    notebook = script(state_dir, gate, SUBMIT_AND_WAIT)
    line_of(notebook, "submitted")
    until(lambda: len(runs_of(gate)) == 3, what="three running trials", timeout_s=60)
    pool = vrampool.Pool(state_dir=state_dir)
    handle = pool.attach("kept")
    handle.cancel("enough")
    handle.wait(30)
    assert notebook.wait(20) == 0, "whoever waits for it is told too"
    assert handle.state == "cancelled" and handle.reason == "enough"
    assert {trial.state for trial in handle.trials} == {TrialState.FAIL}
    assert pool.queue() == [] and handle.finished_roots() == []
    pool.close()


@pytest.mark.slow
def test_a_pool_with_an_owner_ends_with_it_and_goes_on_when_it_is_started_again(state_dir: Path, gate: Path) -> None:
    """`with Pool()` in a notebook that is killed: no process is left over, and the study is still there."""
    notebook = script(
        state_dir,
        gate,
        """
        with vrampool.Pool(**settings) as pool:
            limits = dict(vram="100MiB", max_concurrent_trials=2)
            handle = pool.submit(objectives.counted, 4, study_name="kept", env=env, **limits)
            print("submitted", flush=True)
            handle.wait()
        """,
    )
    line_of(notebook, "submitted")
    until(lambda: len(runs_of(gate)) == 2, what="two running trials", timeout_s=60)
    os.killpg(notebook.pid, signal.SIGKILL)
    notebook.wait()
    until(lambda: not processes_of(state_dir), what="an end of all its processes", timeout_s=40)
    gate.touch()
    with vrampool.Pool(**FAST, state_dir=state_dir) as pool:
        handle = pool.attach("kept").wait(60)
        check_all_went_on(handle, 4)


# ---- a pool that is killed with everything in it -----------------------------------------------------


@pytest.mark.slow
def test_a_pool_goes_on_where_it_was_after_everything_was_killed(state_dir: Path, gate: Path) -> None:
    """As after a power cut: SIGKILL for the host, Valkey, coordinator, supervisor, worker and trials, all at once."""
    command(state_dir, "up")
    pool = vrampool.Pool(state_dir=state_dir)
    options: dict[str, Any] = {"vram": "100MiB", "env": {"PARITY_GATE": str(gate)}}
    handle = pool.submit(objectives.counted, 6, study_name="kept", max_concurrent_trials=3, **options)
    other = pool.submit(objectives.number, 3, study_name="waits", vram="900MiB", priority=-1)
    until(lambda: len(runs_of(gate)) == 3, what="three running trials", timeout_s=60)
    other.study.enqueue_trial({"x": 0.5})
    pool.close()
    kill_all_in(state_dir)
    gate.touch()
    assert "the pool runs" in command(state_dir, "up").stdout
    again = vrampool.Pool(state_dir=state_dir)
    handle, other = again.attach("kept").wait(60), again.attach("waits").wait(60)
    check_all_went_on(handle, 6)
    assert [trial.state for trial in other.study.trials] == [COMPLETE] * 3, "what waited is not lost"
    again.close()
    assert "has ended" in command(state_dir, "down").stdout
    assert "no pool runs" in command(state_dir, "down").stdout


def kill_all_in(state_dir: Path) -> None:
    """SIGKILL for every process of a pool, and for whatever those have started."""
    record = StateDir(load_settings({"state_dir": state_dir}, env={})).read()
    assert record is not None
    host = psutil.Process(record.pid)
    everyone: set[psutil.Process] = set()
    # Stopped first, until none is new: the first deaths would give the last ones time to act.
    while found := {host, *host.children(recursive=True)} - everyone:
        everyone |= found
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
    assert len(everyone) > 6
    for process in everyone:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _, alive = psutil.wait_procs(everyone, timeout=10)
    assert alive == []


def check_all_went_on(handle: vrampool.Handle, n_trials: int) -> None:
    """Each root trial is complete, once; what ran when it was killed was tried again, with its lineage."""
    assert handle.state == "done"
    roots: dict[int, list[optuna.trial.FrozenTrial]] = {}
    for trial in handle.study.trials:
        mark = mark_of(trial)
        assert mark is not None and cancelled_reason(trial) is None
        roots.setdefault(trial.number if mark.root is None else mark.root, []).append(trial)
    assert len(roots) == n_trials
    for attempts in roots.values():
        assert [trial.state for trial in attempts] == [TrialState.FAIL] * (len(attempts) - 1) + [COMPLETE]
        for earlier, later in itertools.pairwise(attempts):
            assert later.params == earlier.params or not earlier.params
            assert later.system_attrs["retry_history"][-1] == earlier.number
            assert later.system_attrs["failed_trial"] == attempts[0].number
    assert max(len(attempts) for attempts in roots.values()) == 2, "some ran, and were tried again once"
