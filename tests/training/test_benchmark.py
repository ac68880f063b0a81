"""The measuring program runs; what it measures needs a card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(*command: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [str(word) for word in command]
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, timeout=100)


def test_a_dry_run_passes_through_every_case_and_makes_tables_of_them(tmp_path):
    pytest.importorskip("accelerate", reason="the offload measurement needs accelerate")
    lines = tmp_path / "facts.jsonl"
    done = run(BENCHMARKS / "gpu_training.py", "--dry", "--out", lines)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert rows[0]["measurement"] == "machine"
    cases = {(row["measurement"], row["case"]) for row in rows[1:]}
    assert len(cases) == len(rows) - 1 == 28
    made = run(BENCHMARKS / "training_tables.py", lines)
    assert made.returncode == 0, made.stderr
    assert all(f"| {case} |" in made.stdout for _, case in cases)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_it_says_how_to_try_it():
    done = run(BENCHMARKS / "gpu_training.py")
    assert done.returncode == 2
    assert "--dry" in done.stderr


def test_an_unknown_measurement_is_named():
    done = run(BENCHMARKS / "gpu_training.py", "--dry", "--only", "offload,speed")
    assert done.returncode == 2
    assert "speed" in done.stderr
