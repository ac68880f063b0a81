"""The probe in real pools on the CPU: what it finds, what it advises, and that its advice helps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support.pools import LivePool, PoolMaker, facts_of

from vrampool.errors import InputError, ObjectiveFailedError
from vrampool.probing import probe
from vrampool.probing.progress import Look
from vrampool.probing.stopping import PROBE_ATTR

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
MIB = 1024**2

pytestmark = pytest.mark.timeout(300)


def command(pool: LivePool, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "vrampool", "probe", *arguments, "--state-dir", str(pool.state_dir)]
    return subprocess.run(line, capture_output=True, text=True, timeout=280, env={**os.environ, "COLUMNS": "160"})


def test_a_probe_finds_the_branches_and_the_worst_corner_and_later_studies_learn_from_it(make_pool: PoolMaker):
    pool = make_pool()
    looks: list[Look] = []
    found = probe(pool.pool, f"{HERE}/objectives.py:branches", runs=5, on_look=looks.append)
    worst = found.corners.worst
    assert worst is not None
    assert {key: worst.params[key] for key in ("kind", "blocks", "depth")} == {
        "kind": "deep",
        "blocks": 100,
        "depth": 100,
    }
    assert worst.peak_bytes is not None and worst.peak_bytes >= 240 * MIB, "its second round was seen"
    assert worst.reports == 2, "and no third one was waited for"
    assert found.fits and found.advice == ()
    assert any("kind=" in look.head for look in looks), "a dry trial went into the branch that was not drawn"
    ended = [look for look in looks if look.run is not None]
    assert [look.run for look in ended] == list(found.runs)
    assert ended[-1].head.startswith(f"corner {len(found.corners.runs)} of at most 5: ")
    live = [look for look in looks if look.run is None and look.held_bytes]
    assert live and all(look.device_bytes == pool.device().budget_bytes for look in live), "seen while they run"
    assert len(found.corners.runs) <= 5
    (room,) = found.rooms
    assert room.of_largest == min(4, room.budget_bytes // (found.largest.peak_bytes + 64 * MIB))  # type: ignore[union-attr]

    handle = pool.pool.attach(found.study)
    assert PROBE_ATTR in handle.study.user_attrs
    assert all(facts_of(trial).request_bytes is None for trial in handle.study.trials), "each had a whole device"
    after = pool.run(f"{HERE}/objectives.py:branches", 1, vram="auto", pruner="vrampool.probing.stopping:AfterReports")
    assert len(after.study.trials) == 1, "the probe's trials are of its own study"
    assert facts_of(after.trials[0]).request_bytes is not None, "the first trial is no stranger"


@pytest.mark.timeout(600)
@pytest.mark.slow  # a dozen trials that import torch and train
def test_an_example_that_is_too_large_fits_after_the_advice_was_followed(make_pool: PoolMaker):
    pytest.importorskip("torch")
    pool = make_pool(preload="torch,torch._dynamo")
    shared = ("--direction", "maximize", "--runs", "5", "--json")
    before = command(pool, f"{EXAMPLES}/too_large.py:objective", *shared)
    assert before.returncode == 1, before.stderr
    assert before.stderr == "", "it is quiet where nobody looks"
    found = json.loads(before.stdout)
    assert not found["fits"]
    assert found["runs"][1]["end"] == "does not fit"
    assert found["runs"][1]["params"]["batch_size"] == 2048
    assert found["bound"]["name"] == "batch_size" and found["bound"]["fits"] == 512
    first = found["advice"][0]
    assert first["helper"] == "training.effective_batch, training.GradientAccumulator"
    mended = (EXAMPLES / "too_large_mended.py").read_text()
    assert f"MAX_PHYSICAL = {found['bound']['fits']}" in mended, "the example follows this very advice"

    after = command(pool, f"{EXAMPLES}/too_large_mended.py:objective", "--direction", "maximize", "--runs", "2")
    assert after.returncode == 0, after.stdout + after.stderr
    assert "What to change" not in after.stdout and "batch_size=2048" in after.stdout


@pytest.mark.slow
def test_a_submission_with_probe_warns_of_what_does_not_fit_and_keeps_the_findings(make_pool: PoolMaker):
    """Its objective never asks whether it should stop: each trial is ended when its peak is stable."""
    pool = make_pool(budget="120MiB")
    pool.device()
    with pytest.warns(UserWarning, match="blocks=100 fits no device of the pool.*To change: search less"):
        handle = pool.submit(f"{HERE}/objectives.py:never_ends", 1, vram="auto", probe=True, study_name="mine")
    handle.cancel()
    handle.wait(30)
    found = handle.probe
    assert not found.fits
    assert found.corners.worst.params == {"blocks": 100} and found.corners.bound.fits < 100
    assert any(run.fits and run.reports >= 2 for run in found.runs)
    states = {trial.state for trial in pool.pool.attach(found.study).study.trials}
    assert TrialState.RUNNING not in states and TrialState.WAITING not in states
    assert len(handle.study.trials) == 1, "the probe's trials are of its own study"


def test_wrong_input_ends_with_2_and_an_objective_that_fails_at_once_says_so(make_pool: PoolMaker):
    pool = make_pool()
    pool.device()
    for arguments in (["no_such_file.py:objective"], [f"{HERE}/objectives.py:branches", "--runs", "1"]):
        done = command(pool, *arguments)
        assert done.returncode == 2 and done.stderr.startswith("error: "), done.stderr
    with pytest.raises(InputError, match="reports must be"):
        probe(pool.pool, f"{HERE}/objectives.py:branches", reports=0)
    with pytest.raises(ObjectiveFailedError, match="no data here"):
        probe(pool.pool, f"{HERE}/objectives.py:fails_at_once")
