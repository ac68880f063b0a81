"""The comparison with other ways of running trials: what is said of a run is what happened in it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.peers import report
from benchmarks.peers.install import closure, size_mb
from benchmarks.peers.running import Result
from benchmarks.peers.ways import WAYS, Way

ROOT = Path(__file__).parents[2]


def peers(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.peers", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)


def result(**changes) -> Result:
    made = Result(
        way="pool",
        case="killed",
        trials=10,
        started=10,
        ended=10,
        processes=10,
        first_s=0.5,
        done_s=4.5,
        cpu_s=3.0,
        cpu_parts={},
        others_share=0.1,
        idle_mib=None,
        idle_processes=None,
        states={str(number): "COMPLETE" for number in range(10)},
        kept_in="journal",
        code=0,
    )
    return dataclasses.replace(made, **changes)


def states(complete: int, **others: int) -> dict[str, str]:
    names = ["COMPLETE"] * complete + [name for name, count in others.items() for _ in range(count)]
    return {str(number): name for number, name in enumerate(names)}


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> tuple[subprocess.CompletedProcess[str], dict[str, dict]]:
    """A real run of four ways whose third trial is killed."""
    out = tmp_path_factory.mktemp("peers") / "seen.json"
    ways = "threads,processes,spawn loop,pool"
    done = peers("--ways", ways, "--cases", "killed", "--quick", "--json", str(out))
    return done, {item["way"]: item for item in json.loads(out.read_text())}


def test_a_killed_trial_takes_all_with_it_where_trials_are_threads(killed):
    done, seen = killed
    assert seen["threads"]["code"] == -9
    assert seen["threads"]["states"] is None
    assert "0 of 6 complete" in done.stdout


def test_the_other_of_two_processes_goes_on_and_the_killed_ones_share_is_never_run(killed):
    states = list(killed[1]["processes"]["states"].values())
    assert states.count("COMPLETE") < 6
    assert states.count("RUNNING") == 1


def test_a_spawn_loop_tells_the_killed_trial_failed(killed):
    states = list(killed[1]["spawn loop"]["states"].values())
    assert sorted(states) == ["COMPLETE"] * 5 + ["FAIL"]


def test_the_pool_tries_the_killed_trial_again_and_loses_nothing(killed):
    done, seen = killed
    assert list(seen["pool"]["states"].values()) == ["COMPLETE"] * 6
    assert seen["pool"]["started"] == 7
    assert seen["pool"]["processes"] == 7
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_way_that_is_not_installed_is_left_out_with_the_reason():
    assert Way("x", "x", ("optuna", "no_such_module"), ("optuna",)).missing() == "no_such_module is not installed"
    assert WAYS["pool"].missing() is None


def test_a_wrong_name_ends_with_code_2_and_names_the_right_ones():
    done = peers("--ways", "threds")
    assert done.returncode == 2
    assert "'threds'" in done.stderr
    assert "spawn loop" in done.stderr


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (result(), "10 of 10 complete, 4.5 s"),
        (result(started=11), "10 of 10 complete, tried again, 4.5 s"),
        (
            result(states=None, code=-9, kept_in="memory", done_s=None),
            "0 of 10 complete, results lost with the process, the run dies (SIGKILL)",
        ),
        (
            result(states=states(6, RUNNING=1), done_s=4.0),
            "6 of 10 complete, 1 left RUNNING, 3 never run, 4.0 s",
        ),
        (
            result(case="hanging", states=states(9, RUNNING=1), code=None, done_s=None),
            "9 of 10 complete, 1 left RUNNING, the run hangs (15 s waited)",
        ),
        (
            result(states=None, code=1, kept_in="memory", done_s=None, error="ValueError: no"),
            "0 of 10 complete, results lost with the process, the run fails: ValueError: no",
        ),
    ],
)
def test_the_fate_of_a_runs_trials_is_told_in_words(seen, words):
    assert report.fate(seen) == words


def test_goals_are_missed_when_a_trial_is_lost_or_time_runs_away():
    good = {("pool", "killed"): result(started=11), ("pool", "torch"): result(case="torch", trials=20, done_s=20.0)}
    assert [row.kept for row in report.goals(good)] == [True, True]
    bad = {
        ("pool", "killed"): result(states=states(9, RUNNING=1)),
        ("pool", "hanging"): result(case="hanging", states=states(10)),
        ("pool", "torch"): result(case="torch", trials=20, done_s=23.0),
    }
    assert [row.kept for row in report.goals(bad)] == [False, False, False]


def test_memory_that_is_kept_is_what_is_held_beyond_an_idle_run():
    seen = {
        ("threads", "noop"): result(way="threads", case="noop", idle_mib=50.0, idle_processes=1),
        ("threads", "memory"): result(way="threads", case="memory", idle_mib=1650.0, idle_processes=1),
    }
    assert report.kept_mib(seen, "threads") == 1600.0


def test_the_size_of_an_installation_counts_what_is_needed_and_not_torch():
    assert {"optuna", "sqlalchemy", "numpy"} <= closure(["optuna"])
    assert closure(["optuna"]) < closure(["vrampool"])
    assert "torch" not in closure(["vrampool[torch]"])
    packages, size = size_mb(["optuna"])
    assert packages >= 8
    assert size > 20


def test_where_the_cpu_time_went_is_told_for_the_pools_parts_and_its_trials(tmp_path):
    """Of one run: the parts make up its CPU time, but for what the pool's end takes."""
    out = tmp_path / "seen.json"
    done = peers("--ways", "pool forkserver", "--cases", "noop", "--quick", "--where", "--json", str(out))
    (seen,) = json.loads(out.read_text())
    parts = seen["cpu_parts"]
    assert {"vrampool coordinator", "vrampool_worker", "vrampool_worker: its trials", "valkey-server"} <= parts.keys()
    assert "vrampool_worker.child.forkserver" in parts
    assert 0.6 * seen["cpu_s"] < sum(parts.values()) <= seen["cpu_s"] + 0.1
    assert "where the CPU time goes" in done.stdout
