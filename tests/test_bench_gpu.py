"""`make bench-gpu`: its arguments and its judgement; what it measures needs a card."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vrampool.units import GIB, MIB

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def gpu():
    sys.path.insert(0, str(ROOT))
    from benchmarks import gpu

    yield gpu
    sys.path.remove(str(ROOT))


def release(used_after_bytes: int, back_s: float = 0.1) -> dict:
    return {"used_after_bytes": used_after_bytes, "back_s": back_s}


def sample(*trials: tuple[int | None, int]) -> dict:
    return {"trials": [{"measured_bytes": measured, "lease_bytes": lease} for measured, lease in trials]}


def attempt(root: int, gib: float, end: str, verdict: str | None = None) -> dict:
    return {"root": root, "gib": gib, "end": end, "verdict": verdict}


def test_a_fifth_of_the_points_is_larger_than_the_card_and_they_are_the_same_each_time(gpu):
    sizes = [point["gib"] for point in gpu.points(100, 24.0, 0.2)]
    assert sum(size > 24 for size in sizes) == 20
    assert all(size < 0.85 * 24 for size in sizes if size <= 24), "the others fit its budget"
    assert max(sizes) < 64, "the objective's range"
    assert gpu.points(100, 24.0, 0.2) == gpu.points(100, 24.0, 0.2)
    assert any(size <= 24 for size in sizes[:20]) and any(size > 24 for size in sizes[:20]), "mixed"


def test_what_stays_beyond_the_baseline_misses_the_goal(gpu):
    fine = gpu.rows_of_release([release(3 * GIB), release(3 * GIB, 0.4)], baseline_bytes=3 * GIB)
    assert [row.kept for row in fine] == [None, True, None]
    assert [row.measured for row in fine] == ["2", "0 MiB", "0.40 s"]
    (_, left, _) = gpu.rows_of_release([release(3 * GIB + 5 * MIB)], baseline_bytes=3 * GIB)
    assert (left.measured, left.kept) == ("5 MiB", False)


def test_a_cap_is_kept_up_to_64_mib_above_the_lease(gpu):
    (row,) = gpu.rows_of_caps([sample((2 * GIB + 60 * MIB, 2 * GIB), (None, GIB)), sample((GIB, 2 * GIB))])
    assert (row.measured, row.kept) == ("60 MiB", True) and "2 samples" in row.what
    (row,) = gpu.rows_of_caps([sample((2 * GIB + 65 * MIB, 2 * GIB))])
    assert row.kept is False
    (row,) = gpu.rows_of_caps([sample((None, GIB))])
    assert row.kept is False, "nothing seen is nothing shown"


def test_verdicts_are_judged_by_what_each_trial_was_made_to_hold(gpu):
    """Its last attempt counts; a victim is one too many even if it completed later."""
    right = [
        attempt(0, 30.0, "oom", "culprit"),
        attempt(0, 30.0, "infeasible", "culprit"),
        attempt(1, 10.0, "oom", "culprit"),
        attempt(1, 10.0, "complete"),
    ]
    rows = gpu.rows_of_verdicts(right, 24.0)
    assert [(row.measured, row.kept) for row in rows] == [
        ("1 of 1", True),
        ("1 of 1", True),
        ("3 culprit", None),
        ("0", True),
    ]
    wrong = [attempt(0, 30.0, "complete"), attempt(1, 10.0, "infeasible", "culprit"), attempt(2, 1.0, "oom", "victim")]
    assert [row.kept for row in gpu.rows_of_verdicts(wrong, 24.0)] == [False, False, None, False]


@pytest.mark.parametrize("arguments", [["--trials", "0"], ["--card", "-1"], ["--beyond", "1.5"], ["--nonsense"]])
def test_wrong_arguments_end_with_code_2(gpu, arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        gpu.main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_without_a_card_it_says_so_and_ends_with_code_2(gpu, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "obstacle", lambda: "there is no NVIDIA driver here")
    assert gpu.main([]) == 2
    assert capsys.readouterr().err == "error: it needs an NVIDIA GPU with torch: there is no NVIDIA driver here\n"


def test_the_goals_are_printed_and_one_that_is_missed_fails_the_run(gpu, monkeypatch, capsys, tmp_path):
    measured = [gpu.rows_of_release([release(0)], 0), gpu.rows_of_caps([sample((3 * GIB, GIB))])]
    monkeypatch.setattr(gpu, "obstacle", lambda: "")
    monkeypatch.setattr(gpu, "measure", lambda *_: iter(measured))
    assert gpu.main(["--card", "16", "--json", str(tmp_path / "rows.json")]) == 1
    printed = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "GPU 0 as a card of 16 GiB" in printed and "0 MiB 0 MiB kept" in printed
    assert "2048 MiB <= 64 MiB missed" in printed
    assert [row["kept"] for row in json.loads((tmp_path / "rows.json").read_text())] == [None, True, None, False]


def test_a_folder_of_an_earlier_run_is_refused(gpu, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpu, "obstacle", lambda: "")
    (tmp_path / "figures.json").touch()
    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--out", str(tmp_path)])
    assert "is not empty; name a new folder" in capsys.readouterr().err


def test_it_is_one_command():
    """`make bench-gpu` runs it; here with --help, as there may be no card."""
    done = subprocess.run(
        ["make", "-n", "bench-gpu", "ARGS=--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "-m benchmarks.gpu --help" in done.stdout
    command = [sys.executable, "-m", "benchmarks.gpu", "--help"]
    shown = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=True).stdout
    assert "a ballast process" in shown and "--beyond" in shown
