"""`make bench-sweep`: its trials, how they are packed, what is counted and judged, and that it runs without a card."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import psutil
import pytest
from benchmarks.sweep import command, objective, way
from benchmarks.sweep.breakdown import Look, break_down, general, of_looks, of_samples
from benchmarks.sweep.by_hand import first_of_all, packing
from benchmarks.sweep.plan import Plan
from benchmarks.sweep.report import goals, markdown
from benchmarks.sweep.summary import Attempt, alone, covered, summarise
from benchmarks.sweep.trials import all_trials, largest, trial_list, trial_of
from benchmarks.sweep.ways import way_of
from support import mps_control
from support.child_driver import alive, wait_for

from vrampool.units import GIB

ROOT = Path(__file__).parents[2]
#: The first 24, as they were run on a H200 when the figures in the documentation were measured.
FIRST_24 = [40, 14, 34, 27, 3, 26, 5, 45, 33, 11, 25, 16, 21, 9, 37, 24, 0, 23, 47, 22, 32, 42, 8, 12]


def attempt(index: int, start_s: float, end_s: float, end: str = "complete", **more) -> Attempt:
    return Attempt(index, start_s, end_s, end, **more)


def row(makespan_s: float, **more) -> dict:
    return {"makespan_s": makespan_s, "victims": 0, "lost_fit": 0, "unfinished": 0, "beyond_alone_s": 0.0, **more}


def verdicts(rows) -> list:
    return [item.kept for item in rows]


# ---- the list


def test_the_trials_are_always_the_same_in_the_same_order():
    trials = trial_list()
    assert [trial.id for trial in trials] == FIRST_24
    assert [trial.target_s for trial in trials[:3]] == [3.95, 2.86, 2.6]
    assert all(2 <= trial.target_s <= 8 for trial in all_trials())
    assert [trial.id for trial in trial_list(8)] == FIRST_24[:8]
    assert sorted(trial.id for trial in trial_list(48)) == list(range(48))


def test_each_block_of_eight_has_trials_beyond_the_card_and_small_ones():
    trials = trial_list()
    for block in (trials[:8], trials[8:16], trials[16:]):
        sizes = [trial.gib for trial in block]
        assert 1 <= sum(size > 24 for size in sizes) <= 2
        assert min(sizes) <= 1.0
    assert sum(trial.gib > 24 for trial in trials) == 4, "by their estimates; what is measured decides"


def test_the_largest_keep_their_order():
    chosen = [trial.id for trial in largest(trial_list())]
    assert chosen == [34, 27, 45, 33, 9, 37, 47, 8]


def test_a_trial_is_found_by_its_parameters():
    assert [trial_of(trial.params).id for trial in all_trials()] == list(range(48))
    with pytest.raises(LookupError):
        trial_of({"model": "mlp", "width": 1, "depth": 1, "batch": 1, "amp": False})


def test_steps_fill_the_target_and_are_at_least_four():
    trial = all_trials()[0]
    assert trial.steps(10.0, 1.0) == round(trial.target_s * 100)
    assert trial.steps(1e6, 1.0) == 4


def test_the_objective_suggests_every_trial_as_it_is(monkeypatch, tmp_path):
    """A point outside the suggested range would be replaced by another, in silence."""
    every = [trial.id for trial in all_trials()]
    plan = Plan("cpu", 24.0, False, 0, tuple(every), dict.fromkeys(every, 4), {}, {}, dry=True)
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan
    monkeypatch.setenv("SWEEP_PLAN", str(tmp_path / "plan.json"))
    trained = []
    monkeypatch.setattr(objective, "train", lambda trial, steps, device, **_: trained.append((trial.id, steps)) or 0.0)
    study = optuna.create_study()
    for trial in all_trials():
        study.enqueue_trial(trial.params)
    study.optimize(objective.objective, n_trials=48)
    assert trained == [(index, 4) for index in every]


# ---- packing


def test_the_oracle_starts_the_largest_that_fits_to_85_percent_of_the_card():
    pick = packing(20.0)
    assert pick([3.0, 12.0, 9.0], [5.0]) == 1, "5 + 12 = 17, just the budget"
    assert pick([3.0, 12.1, 9.0], [5.0]) == 2
    assert pick([13.0, 12.5], [5.0]) is None
    assert pick([19.0, 12.0], []) == 0, "alone it may have all of the card"
    assert pick([], []) is None


def test_a_fixed_number_goes_by_the_order_alone():
    assert first_of_all([99.0, 1.0], [99.0]) == 0
    assert first_of_all([], []) is None


# ---- counting


def test_what_became_of_the_trials_is_counted_by_whether_they_fit():
    attempts = [
        attempt(1, 0.0, 4.0),
        attempt(2, 0.0, 2.0, "oom", verdict="victim"),
        attempt(2, 5.0, 6.0, attempt=2),
        attempt(3, 6.0, 9.0, "infeasible", verdict="culprit"),
        attempt(4, 0.0, 1.0, "failed"),
    ]
    found = summarise(attempts, [1, 2, 3, 4], [3], 10.0, cut=False)
    kept = {"finished": 2, "lost_fit": 1, "lost_beyond": 1, "unfinished": 0, "retries": 1, "ooms": 2, "victims": 1}
    assert {name: found[name] for name in kept} == kept
    assert (found["idle_s"], found["beyond_alone_s"], found["wasted_s"]) == (2.0, 3.0, 6.0)
    assert found["mean_concurrent"] == 1.1


def test_a_trial_that_was_cut_off_is_unfinished_and_not_lost():
    attempts = [
        attempt(1, 0.0, 4.0),
        attempt(2, 0.0, 2.0, "oom", verdict="culprit"),
        attempt(3, 2.0, 3.0, "infeasible"),
    ]
    found = summarise(attempts, [1, 2, 3, 4], [3], 5.0, cut=True)
    assert (found["finished"], found["lost_fit"], found["lost_beyond"], found["unfinished"]) == (1, 0, 1, 2)


def test_times_that_overlap_are_counted_once():
    assert covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]) == 4.0
    attempts = [attempt(1, 0.0, 2.0), attempt(9, 1.0, 5.0), attempt(9, 6.0, 7.0)]
    assert alone(attempts, {9}) == 4.0


def test_the_slowdown_is_beside_the_time_alone():
    attempts = [attempt(1, 0, 4, facts={"run_s": 4.0, "alone_s": 2.0}), attempt(2, 0, 4, facts={"run_s": None})]
    assert summarise(attempts, [1, 2], [], 4.0, cut=False)["slowdown"] == 2.0


# ---- the breakdown


def test_leases_and_use_are_means_over_time():
    trials = [{"lease_bytes": 10 * GIB, "measured_bytes": 4 * GIB}]
    samples = [
        {"at_s": 100.0, "used_bytes": 5 * GIB, "trials": trials},
        {"at_s": 101.0, "used_bytes": GIB, "trials": []},
        {"at_s": 104.0, "used_bytes": 9 * GIB, "trials": trials},
    ]
    found = of_samples(samples, 10 * GIB, (100.0, 104.0))
    assert (found["leased_mean_gib"], found["measured_mean_gib"], found["used_mean_gib"]) == (2.5, 1.0, 2.0)
    assert found["exclusive_s"] == 1.0
    assert of_samples([], 10 * GIB, (100.0, 104.0))["exclusive_s"] is None


def test_equal_reasons_count_together():
    why = "waits for 3.5 GiB: GPU 0 has 2 GiB free"
    looks = [Look(10.0, 1, 2, why), Look(11.0, 0, 1), Look(13.0, 2, 2, why.replace("3.5", "4"))]
    found = of_looks(looks, (10.0, 15.0))
    assert found == {"queue_empty_s": 2.0, "first_in_line_s": {general(why): 3.0, "nothing waits": 2.0}}


def test_time_without_an_objective_includes_starts_and_ends_of_processes():
    facts = {"spawn_s": 1.0, "handover_s": 0.5, "exit_s": 0.5, "lease_bytes": 4, "peak_bytes": 2, "request_bytes": None}
    found = break_down([attempt(1, 1.0, 9.0, facts=facts)], [], [], [], budget_bytes=GIB, span=(0.0, 10.0))
    assert found["no_objective_s"] == 4.0
    assert (found["until_first_start_s"], found["after_last_end_s"], found["nothing_started_s"]) == (1.0, 1.0, 0.0)
    assert (found["asked_for_all"], found["asked_for_all_s"], found["lease_over_peak"]) == (1, 8.0, 2.0)


# ---- goals


def test_the_pool_is_judged_by_its_oracle_and_by_the_best_harmless_number():
    ways = {
        "fixed2": row(50.0),
        "fixed4": row(40.0, victims=1),
        "oracle": row(42.0),
        "oracle-mps": row(30.0),
        "pool": row(48.0),
        "pool-mps": row(34.6),
    }
    near, fixed, *rest = goals(ways)[:4]
    assert (near.kept, fixed.kept, verdicts(rest)) == (True, True, [True, True])
    assert "fixed2" in fixed.what, "fixed4 harmed a trial"
    near_mps = goals(ways)[4]
    assert "oracle-mps" in near_mps.what and near_mps.kept is False


def test_goals_are_missed_by_time_victims_and_losses():
    ways = {"fixed2": row(50.0), "oracle": row(40.0), "pool": row(51.0, victims=1, lost_fit=1, unfinished=1)}
    assert verdicts(goals(ways)) == [False, False, False, False]
    assert verdicts(goals({"oracle": row(40.0), "pool": row(30.0, unfinished=1)}))[0] is False, "cut off is not quick"
    assert verdicts(goals({"oracle": row(0.4), "pool": row(9.0)}, timed=False)) == [True, True]
    assert verdicts(goals({"one": row(100.0), "pool": row(104.0)}, large=True))[0] is False
    assert verdicts(goals({"one": row(100.0), "pool": row(102.0)}, large=True))[0] is True


def test_a_way_that_failed_is_a_row_of_the_table():
    text = markdown([{"way": "oracle", "error": "code 1: a|b"}, {"way": "one", **row(4.5)}], "title", [])
    assert "| oracle | code 1: a/b |" in text
    assert "| one | 4.5 |" in text


def test_ways_of_an_earlier_run_stand_in_the_table_if_they_ran_the_same(tmp_path):
    file = tmp_path / "ways.jsonl"
    old = [{"way": "one", "plan": "a", "n": 1}, {"way": "one", "plan": "a", "n": 2}, {"way": "oracle", "plan": "b"}]
    file.write_text("".join(json.dumps(item) + "\n" for item in old))
    new = [{"way": "pool", "plan": "a"}, {"way": "fixed2", "error": "x"}]
    assert command._with_earlier(new, file) == [old[1], *new]
    assert command._with_earlier([], file) == []


# ---- ways and arguments


def test_ways_are_told_by_their_names():
    assert (way_of("fixed12").kind, way_of("fixed12").at_once) == ("fixed", 12)
    assert (way_of("pool").start, way_of("pool-forkserver").start, way_of("one").start) == (
        "spawn",
        "forkserver",
        "forkserver",
    )
    assert way_of("pool-forkserver-mps").mps and way_of("one-spawn").start == "spawn"
    for wrong in ("fixed", "pools", "mps", "oracle-fast"):
        with pytest.raises(ValueError, match="there is no way"):
            way_of(wrong)


@pytest.mark.parametrize("wrong", [["--ways", "x"], ["--trials", "0"], ["--set", "spares=many"], ["--set", "nothing"]])
def test_wrong_arguments_end_with_code_2(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(wrong)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_clients_of_mps_have_its_variables_and_the_daemon_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{mps_control.install(tmp_path)}:{os.environ['PATH']}")
    monkeypatch.setattr("benchmarks.sweep.watching.Card", lambda: type("Card", (), {"uuid": "GPU-1"}))
    with way._mps_clients():
        pipes = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
        daemon, server = (int(word) for word in (pipes / "pid").read_text().split())
        assert alive(daemon) and alive(server)
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    wait_for(lambda: not alive(daemon) and not alive(server))


# ---- as a whole, on the CPU


def sweep(out: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.sweep", "--dry", "--trials", "8", "--out", str(out), *arguments]


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_it_runs_without_a_card(tmp_path):
    ways = "one,oracle,pool-forkserver"
    done = subprocess.run(sweep(tmp_path, "--ways", ways), cwd=ROOT, capture_output=True, text=True, timeout=390)
    rows = {item["way"]: item for item in lines(tmp_path / "ways.jsonl")}
    assert list(rows) == ways.split(","), done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(item["finished"] == 7 and item["lost_beyond"] == 1 for item in rows.values())
    assert all(item["left_behind"] == [] for item in rows.values())
    assert rows["oracle"]["ooms"] == 0 and rows["one"]["ooms"] == 1
    attempts = lines(tmp_path / "attempts.jsonl")
    facts = [item["facts"] for item in attempts if item["way"] == "pool-forkserver" and item["end"] == "complete"]
    assert len(facts) == 7
    assert all(item["lease_bytes"] and item["peak_bytes"] and item["handover_s"] is not None for item in facts)
    assert rows["pool-forkserver"]["breakdown"]["leased_mean_gib"] > 0
    assert "| all |" in (tmp_path / "timeline-pool-forkserver.md").read_text(), "of the first nothing was known"
    assert "### pool" in (tmp_path / "table.md").read_text()


@pytest.mark.slow
def test_a_signal_leaves_nothing_behind_and_keeps_what_was_measured(tmp_path):
    process = subprocess.Popen(
        sweep(tmp_path, "--ways", "one,pool"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    log = tmp_path / "state-pool" / "logs" / "coordinator.log"
    wait_for(log.exists, limit_s=60)
    below = psutil.Process(process.pid).children(recursive=True)
    assert below
    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, told
    wait_for(lambda: not any(alive(each.pid) for each in below))
    assert [item["way"] for item in lines(tmp_path / "ways.jsonl")] == ["one"]
    assert "| one |" in (tmp_path / "table.md").read_text()


@pytest.mark.slow
def test_a_way_that_fails_is_told_and_the_others_go_on(tmp_path):
    wrong = sweep(tmp_path, "--ways", "pool,one", "--set", "budget=1000000GiB")
    done = subprocess.run(wrong, cwd=ROOT, capture_output=True, text=True, timeout=100)
    first, second = lines(tmp_path / "ways.jsonl")
    assert "error" in first and second["finished"] == 7, done.stderr
    assert done.returncode == 1
