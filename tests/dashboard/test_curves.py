"""Rows of a device's window: thinned, bounded, and in a form that travels."""

from __future__ import annotations

import json

from vrampool.dashboard.curves import WINDOWS, Curve, message, thinned
from vrampool.units import MIB


def sample(at: float, held_mib: float = 100, *, trials: int = 1, **changes: object) -> dict[str, object]:
    running = [
        {"study": "digits", "number": n, "lease_bytes": 200 * MIB, "measured_bytes": int(held_mib * MIB)}
        for n in range(trials)
    ]
    return {"at_s": at, "used_bytes": 300 * MIB, "driver_reserved_bytes": 0, "trials": running, **changes}


def test_a_row_tells_lease_held_reserved_allocated_and_cap_in_mib_and_none_where_unknown():
    curve = Curve()
    allocator = {"torch_reserved_bytes": 80 * MIB, "allocated_bytes": 50 * MIB, "cap_bytes": 190 * MIB}
    told = sample(1000.0, utilisation=0.5)
    told["trials"][0] |= allocator
    curve.add(told)
    curve.add(sample(1001.0))
    first, second = message(curve.rows(300))["rows"]
    assert first == [1000.0, 300.0, 0.0, None, 0.5, [[0, 0, 200.0, 100.0, 80.0, 50.0, 190.0]]]
    assert second[5] == [[0, 0, 200.0, 100.0, None, None, None]], "a CPU trial has no allocator that tells"


def test_samples_within_a_step_become_one_row_with_the_most_of_each():
    curve = Curve()
    for at, held in ((3000.0, 10), (3000.5, 90), (3001.0, 40), (3003.0, 20)):
        curve.add(sample(at, held))
    assert [row[5]["digits", 0][1] for row in curve.rows(1800)] == [90.0, 20.0]
    assert len(curve.rows(300)) == 4, "the short window has them all"


def test_a_trial_that_left_within_a_step_is_not_stacked_under_its_successor():
    curve = Curve()
    curve.add(sample(3000.0, trials=2))
    curve.add(sample(3001.0, trials=1))
    (row,) = curve.rows(1800)
    assert list(row[5]) == [("digits", 0)]


def test_hours_of_samples_stay_a_window_of_bounded_rows():
    curve = Curve()
    for place in range(4 * 7200):
        curve.add(sample(10_000 + place * 0.5, trials=3))
    for window_s, step_s in WINDOWS.items():
        rows = curve.rows(window_s)
        assert len(rows) <= window_s / step_s + 1
        assert rows[-1][0] - rows[0][0] <= window_s


def test_a_window_ends_with_its_newest_row_however_long_nothing_was_sampled():
    curve = Curve()
    for at in (1000.0, 1001.0, 9000.0):
        curve.add(sample(at))
    assert [row[0] for row in curve.rows(300)] == [9000.0]


def test_a_sample_that_comes_twice_or_late_changes_nothing():
    curve = Curve()
    assert curve.add(sample(1000.0)) is not None
    assert curve.add(sample(1000.0, 999)) is None and curve.add(sample(990.0)) is None
    assert len(curve.rows(300)) == 1


def test_samples_of_another_version_are_read_as_far_as_they_go():
    curve = Curve()
    assert curve.add({"trials": [{"study": "digits"}]}) is None
    assert curve.add({"at": 5.0, "trials": [{"study": "digits"}, {"study": "a", "number": 1}]}) is not None
    unknown = [None] * 5
    assert message(curve.rows(300)) == {"studies": ["a"], "rows": [[5.0, *unknown[:4], [[0, 1, *unknown]]]]}


def test_of_the_past_one_sample_for_each_row_is_read_and_of_the_last_minutes_all():
    past = [{"at": 10_000 + place * 0.5} for place in range(2 * 7200)]
    kept = [sample["at"] for sample in thinned(past)]
    newest = past[-1]["at"]
    assert sum(newest - at <= 300 for at in kept) == 601
    older = [at for at in kept if newest - at > 300]
    assert len(older) <= 501 and newest - older[0] <= 1800
    assert list(thinned([])) == []


def test_a_study_is_named_once_in_a_message():
    curve = Curve()
    for place in range(100):
        curve.add(sample(1000 + place, trials=4))
    assert json.dumps(message(curve.rows(300))).count("digits") == 1
