"""`make bench-learning`: how samples of leases become over-reservation, and how a family is judged."""

from __future__ import annotations

from collections import Counter

import pytest
from benchmarks import gpu_learning, lease_times
from benchmarks.lease_times import Attempt

from vrampool.units import GIB


def attempt(number: int, *, root: int | None = None, end: str = "complete", peak_gib: float = 2.0, **facts) -> Attempt:
    known = {"verdict": None, "request_bytes": 3 * GIB, "overhead_bytes": GIB // 2, "at_least": False, "shrunk": False}
    own = number if root is None else root
    return Attempt(number=number, root=own, end=end, peak_bytes=int(peak_gib * GIB), **known | facts)


def sample(at_s: float, *trials: tuple[int, float, float | None], study: str = "mlp") -> dict:
    """A sample of trials: number, lease and memory in GiB."""
    held = [
        {
            "study": study,
            "number": number,
            "lease_bytes": int(lease * GIB),
            "measured_bytes": None if measured is None else int(measured * GIB),
        }
        for number, lease, measured in trials
    ]
    return {"at_s": at_s, "trials": held, "utilisation": 0.5}


def test_what_is_leased_beyond_the_peak_counts_by_its_time():
    """4 GiB for a second, then 3 GiB for a second, of a trial that held 1 GiB at first and 2 GiB then."""
    samples = [sample(0, (0, 4, 1)), sample(0.5, (0, 4, 1)), sample(1.0, (0, 3, 2)), sample(2.0)]
    times = lease_times.lease_times(samples, "mlp", 0)
    over = lease_times.over_reserved([attempt(0)], times)
    assert over.peaks == pytest.approx(7 / 4 - 1)
    assert over.moment == pytest.approx(7 / 3 - 1)
    assert over.unshrunk == pytest.approx(8 / 4 - 1)
    assert times[0].changes == [-GIB]
    assert lease_times.concurrency(samples, "mlp") == 1


def test_attempts_whose_peak_is_not_known_are_left_out():
    samples = [sample(0, (0, 4, 2), (1, 9, 2), (2, 9, 2)), sample(1, (0, 4, 2), (1, 9, 2), (2, 9, 2))]
    attempts = [attempt(0), attempt(1, end="oom", verdict="culprit"), attempt(2, at_least=True)]
    over = lease_times.over_reserved(attempts, lease_times.lease_times(samples, "mlp", 0))
    assert (over.peaks, over.attempts) == (pytest.approx(1.0), 1)
    assert lease_times.over_reserved(attempts[1:], lease_times.lease_times(samples, "mlp", 0)) is None


def test_another_study_and_a_gap_between_samples_do_not_count():
    samples = [sample(0, (0, 4, 2), study="cnn"), sample(1, (0, 4, 2)), sample(100, (0, 4, 2)), sample(100.5)]
    (time,) = lease_times.lease_times(samples, "mlp", 0).values()
    assert time.seconds == pytest.approx(1.5)


def test_where_the_driver_tells_nothing_of_processes_the_allocator_does():
    (before, after) = sample(0, (0, 4, None)), sample(1)
    before["trials"][0]["torch_reserved_bytes"] = GIB
    (time,) = lease_times.lease_times([before, after], "mlp", GIB // 2).values()
    assert time.held == pytest.approx(1.5 * GIB)


def test_retries_are_counted_per_trial_asked_for_and_the_first_ones_left_out():
    attempts = [attempt(number) for number in range(50)]
    attempts += [attempt(50, root=3), attempt(51, root=20), attempt(52, root=20)]
    later = lease_times.after_first(attempts, 10)
    assert {item.root for item in later} == set(range(10, 50))
    assert lease_times.retries_per_100(later) == pytest.approx(100 * 2 / 40)
    assert lease_times.retries_per_100([]) is None


def test_requests_are_compared_with_final_peaks():
    attempts = [attempt(0), attempt(1, request_bytes=2 * GIB), attempt(2, request_bytes=None), attempt(3, end="oom")]
    assert lease_times.request_error(attempts) == (pytest.approx(1.25), pytest.approx(0.25))


def test_what_was_done_with_leases_is_counted_in_the_log():
    lines = [
        "2026-01-01 INFO vrampool.worker: mlp/3 is to shrink from 4.0 GiB to 3.0 GiB: a trial waits for 2.0 GiB",
        "2026-01-01 INFO vrampool.worker: mlp/3: gave back 1.0 GiB",
        "2026-01-01 INFO vrampool.worker: mlp/4: grew to 2.0 GiB",
        "2026-01-01 INFO vrampool.worker: cnn/3: gave back 1.0 GiB",
    ]
    assert lease_times.count_moves(lines, "mlp") == Counter({"shrinks asked for": 1, "shrinks done": 1, "grows": 1})


def family(samples: list[dict], attempts: list[Attempt]) -> list:
    found = {"family": "mlp", "asked": 20, "trials": 20, "wall_s": 9.0, "moves": {}, "stopped_by": {}}
    rows = gpu_learning.rows_of(found | gpu_learning.figures(attempts, samples, "mlp"))
    return [row.kept for row in rows if row.kept is not None]


def test_a_family_is_judged_by_both_goals_and_has_no_victims():
    tight = [sample(at_s, *((number, 2.2, 2) for number in range(20))) for at_s in (0.0, 0.5, 1.0)]
    fine = [attempt(number) for number in range(20)]
    assert family(tight, fine) == [True, True, True, True]
    wide = [sample(at_s, *((number, 2.5, 2) for number in range(20))) for at_s in (0.0, 0.5, 1.0)]
    lost = [*fine, attempt(20, root=15, end="oom", verdict="victim")]
    assert family(wide, lost) == [False, False, False, False]


def test_without_a_card_it_says_so_and_ends_with_code_2(monkeypatch, capsys):
    monkeypatch.setattr(gpu_learning, "obstacle", lambda: "there is no NVIDIA driver here")
    monkeypatch.setattr(gpu_learning, "available", lambda: True)
    assert gpu_learning.main([]) == 2
    assert capsys.readouterr().err == "error: there is no NVIDIA driver here\n"
