"""`make bench-concurrency`: how steps become throughput, and how the found number is judged."""

from __future__ import annotations

import pytest
from benchmarks import gpu_concurrency, step_times
from benchmarks.step_times import Trace


def steady(from_s: float, until_s: float, per_s: float) -> Trace:
    """A trial that did its first step at one time and its last at the other, with a line each quarter of a second."""
    count = round((until_s - from_s) * 4)
    times = tuple(from_s + index / 4 for index in range(count + 1))
    return Trace(times, tuple(1 + round(index / 4 * per_s) for index in range(count + 1)))


def test_steps_are_spread_evenly_between_two_lines():
    trace = Trace((10.0, 12.0, 13.0), (1, 5, 9))
    assert [trace.done_by(at_s) for at_s in (9.9, 10.0, 11.0, 12.5, 13.0, 99.0)] == [0, 1, 3, 7, 9, 9]
    assert [trace.runs_at(at_s) for at_s in (9.9, 10.0, 12.9, 13.0)] == [False, True, True, False]


def test_a_line_that_a_process_could_not_finish_is_left_out(tmp_path):
    (tmp_path / "0.steps").write_text("10.0 1\n10.5 40\n10.7 5")
    (tmp_path / "1.steps").write_text("")
    assert step_times.read_traces(tmp_path) == [Trace((10.0, 10.5), (1, 40))]


def test_the_rate_is_of_all_trials_and_the_pause_between_them_counts():
    traces = [steady(0, 4, 100), steady(6, 10, 100)]
    assert step_times.rate(traces, 0, 10) == pytest.approx(80, abs=1)
    levels = step_times.by_level(traces, 0, 10)
    assert levels[1][0] == pytest.approx(8) and levels[1][1] == pytest.approx(100, rel=0.02)
    assert levels[0][0] == pytest.approx(2)
    assert step_times.time_until(traces, 401) == pytest.approx(4, abs=0.01)
    assert step_times.time_until(traces, 603) == pytest.approx(8, abs=0.03)
    assert step_times.time_until(traces, 900) is None


def test_counting_may_begin_later():
    """What ran before is cut off, what begins later stays whole, what had ended is gone."""
    traces = [steady(0, 4, 100), steady(0, 1, 100), steady(3, 4, 100)]
    later = step_times.since(traces, 2.0)
    assert [trace.at_s[0] for trace in later] == [2.0, 3.0]
    assert [trace.done[-1] for trace in later] == [200, 101]
    assert step_times.first_step_s(later) == 2.0


def test_changes_of_the_number_at_once_leave_out_moments():
    """A trial that ends and is replaced at once is no change."""
    traces = [steady(0, 10, 100), steady(0, 5, 100), steady(5.25, 10, 100), steady(7, 10, 100)]
    assert step_times.changes_of_level(traces, 0, 10) == [(0.0, 2), (7.0, 3)]


def line(way: str, traces: list[Trace], kind: str = "small") -> dict:
    return {"kind": kind, "way": way, **gpu_concurrency.figures(traces, 0, 10), "sm_busy": None}


def judged(found: list[Trace], **fixed: list[Trace]) -> list:
    ways = {"found": found, **{name.removeprefix("k"): traces for name, traces in fixed.items()}}
    lines = [line(way, traces) for way, traces in ways.items()]
    rows = gpu_concurrency.rows_of("small", lines, {("small", way): traces for way, traces in ways.items()})
    return [row for row in rows if row.kept is not None]


def test_the_found_number_is_judged_against_the_best_fixed_one():
    four = [steady(0, 10, 100) for _ in range(4)]
    eight = [steady(0, 10, 60) for _ in range(8)]
    rows = judged([steady(0, 10, 92) for _ in range(5)], k4=four, k8=eight)
    assert all("8 at once" in row.what for row in rows), "480 steps a second are more than 400"
    assert [row.kept for row in rows] == [True, True, True], "460 against 480"
    assert [row.kept for row in judged(four, k8=eight)] == [False, False, False], "400 against 480"


def test_a_long_climb_counts_in_the_whole_and_not_once_it_has_settled():
    eight = [steady(0, 10, 60) for _ in range(8)]
    climbs = [steady(0, 10, 60) for _ in range(4)] + [steady(4, 10, 60) for _ in range(4)]
    whole, settled, work = judged(climbs, k8=eight)
    assert (whole.kept, settled.kept, work.kept) == (False, True, False)
    assert settled.measured == "1.000"


def test_a_way_that_failed_is_told_and_judges_nothing():
    lines = [line("4", [steady(0, 10, 100)]), {"kind": "small", "way": "found", "error": "trials fail"}]
    rows = gpu_concurrency.rows_of("small", lines, {})
    assert [row.kept for row in rows] == [None, None, None]
    assert rows[1].measured == "failed: trials fail" and rows[2].measured == "not measured"


def test_utilisation_is_told_by_the_number_of_trials():
    samples = [
        {"trials": [{}], "utilisation": 0.2},
        {"trials": [{}, {}], "utilisation": 0.5},
        {"trials": [{}, {}], "utilisation": None},
        {"trials": [], "utilisation": 0.9},
    ]
    assert gpu_concurrency.busy(samples) == {"sm_busy": 0.35, "sm_busy_by_trials": {"1": 0.2, "2": 0.5}}


def test_without_a_card_it_says_so_and_ends_with_code_2(monkeypatch, capsys):
    monkeypatch.setattr(gpu_concurrency, "obstacle", lambda: "there is no NVIDIA driver here")
    assert gpu_concurrency.main([]) == 2
    assert "there is no NVIDIA driver here; --dry runs on the CPU" in capsys.readouterr().err
