"""A real pool that is told nothing of memory: it learns what trials need, says so, and teaches the sampler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from optuna.trial import FrozenTrial, TrialState
from support.pools import LivePool, facts_of
from support.waiting import until

import vrampool
from vrampool.storage import REQUEST

pytest.importorskip("sklearn", reason="learning needs the extra `learn`")

OBJECTIVES = Path(__file__).with_name("objectives.py")
MIB = 1024**2


def explain(pool: LivePool, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vrampool", "explain", *arguments, "--state-dir", str(pool.state_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "160"})


def predicted_of(handle: vrampool.Handle) -> list[FrozenTrial]:
    """Return the study's trials whose request was predicted."""
    return [trial for trial in handle.study.get_trials(deepcopy=False) if "predicted" in trial.user_attrs[REQUEST]]


@pytest.mark.timeout(300)  # scikit-learn's import alone takes a minute where the machine is full
def test_a_pool_that_is_told_nothing_predicts_from_parameters_and_explains_it(pool: LivePool):
    pool.idle()
    handle = pool.run(f"{OBJECTIVES}:hold_what_it_draws", 12, vram="auto", study_name="learned", seed=3)
    # A fit takes as long as a few of these trials on a busy machine: some more follow until there is one.
    until(
        lambda: predicted_of(pool.run(f"{OBJECTIVES}:hold_what_it_draws", 3, vram="auto", study_name="learned")),
        timeout_s=150,
    )
    trials = handle.study.get_trials(deepcopy=False)
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    budget = pool.device().budget_bytes
    for trial in trials:
        over = (facts_of(trial).peak_bytes - budget) / 1024**3
        assert facts_of(trial).over_gib == pytest.approx(over)
        assert over < 0 and trial.constraints == {}, "it fitted"
    last = predicted_of(handle)[-1]
    assert facts_of(last).request_reason.startswith("predicted "), facts_of(last).request_reason
    assert "from blocks" in facts_of(last).request_reason

    done = explain(pool, "learned", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [item["number"] for item in found["trials"]] == list(range(len(trials)))
    assert found["model"]["trials"] == len(trials)
    assert found["drivers"][0]["name"] == "blocks"
    row = found["trials"][last.number]
    assert row["predicted_bytes"] == last.user_attrs[REQUEST]["predicted"]
    assert (row["peak_bytes"], row["lease_bytes"]) == (facts_of(last).peak_bytes, facts_of(last).lease_bytes)

    shown = explain(pool, "learned", "--last", "3")
    assert shown.returncode == 0, shown.stderr
    assert f"the last 3 of {len(trials)} trials" in shown.stdout
    assert "blocks" in shown.stdout and f"The model has learned from {len(trials)} trials" in shown.stdout

    again = pool.run(f"{OBJECTIVES}:hold_what_it_draws", 1, vram="auto", study_name="learned-again", seed=4)
    assert facts_of(again.trials[0]).request_bytes is not None, "the same code in another study is no stranger"
    found = json.loads(explain(pool, "learned-again", "--json").stdout)
    known = len(handle.study.get_trials(deepcopy=False))
    assert (found["model"]["trials"], found["model"]["others"]) == (known + 1, known), "explained by the same peaks"


def test_a_function_of_the_parameters_and_bounds_win_over_what_was_learned(pool: LivePool):
    def own(params):
        return (100 + params["blocks"]) * 1024**2

    points = [{"blocks": 20, "rate": 0.1}, {"blocks": 60, "rate": 0.1}]
    handle = pool.run(f"{OBJECTIVES}:hold_what_it_draws", 2, vram=own, points=points)
    assert [facts_of(trial).request_bytes for trial in handle.trials] == [120 * MIB, 160 * MIB]
    bounded = pool.run(f"{OBJECTIVES}:hold_what_it_draws", 2, vram=("300MiB", "400MiB"), points=points)
    assert all(300 * MIB <= facts_of(trial).request_bytes <= 400 * MIB for trial in bounded.trials)


def test_a_function_that_raises_ends_the_submission_and_says_why(pool: LivePool):
    handle = pool.submit(f"{OBJECTIVES}:hold_what_it_draws", 2, vram=lambda params: params["nothing"])
    handle.wait(60)
    assert handle.state.name == "FAILED"
    assert "vram function" in handle.reason and "KeyError" in handle.reason
