"""Whom the coordinator calls to a trial that waits: one worker that has room, and soon another if it does not come."""

from __future__ import annotations

import pytest

from vrampool.coordinator.calls import LATE_S, TURN_S, Calls, Waiting
from vrampool.queueing import RunningTrial, WorkerRecord
from vrampool.units import GIB


def worker(name: str, *, free: int = 40, runs: int = 0, **changes) -> WorkerRecord:
    values = {
        "name": name,
        "host": "hub",
        "pid": 1,
        "device_id": f"GPU-{name}",
        "device_name": "H200",
        "device_kind": "cuda",
        "total_bytes": 80 * GIB,
        "budget_bytes": 68 * GIB,
        "free_bytes": free * GIB,
        "slots": 4,
        "state": "ready",
        "running": tuple(RunningTrial("digits", 90 + index, GIB, GIB, 1.0) for index in range(runs)),
    }
    return WorkerRecord(**{**values, **changes})


def trial(number: int, gib: int | None = 10, **changes) -> Waiting:
    return Waiting(f"sub1-{number}", "sub1", None if gib is None else gib * GIB, **changes)


def looking(*records: WorkerRecord) -> Calls:
    calls = Calls()
    calls.look_at(records)
    assert calls.again([], 0.0) == []
    return calls


def test_as_many_workers_are_called_as_there_are_new_trials():
    calls = looking(*(worker(f"w{index}") for index in range(100)))
    assert [calls.new(trial(number), 0.0) for number in range(3)] == [["w0"], ["w1"], ["w2"]]


@pytest.mark.parametrize(
    "cannot",
    [
        worker("w0", free=9),
        worker("w0", runs=4),
        worker("w0", state="paused"),
        worker("w0", refused={"sub1": "another source"}),
        worker("w0", full_submissions=("sub1",)),
        worker("w0", earmark="sub1-7", room_bytes=GIB),
    ],
    ids=["no room", "no slot", "paused", "refuses", "full", "kept free for another"],
)
def test_who_cannot_take_it_is_not_called(cannot):
    assert looking(cannot, worker("w1")).new(trial(1), 0.0) == ["w1"]
    assert looking(cannot).new(trial(1), 0.0) == []


def test_what_running_trials_would_give_back_is_room():
    assert looking(worker("w0", free=0, runs=1, shrinkable_bytes=20 * GIB)).new(trial(1), 0.0) == ["w0"]


def test_a_trial_that_wants_a_device_alone_is_called_to_an_idle_one():
    assert looking(worker("w0", runs=1), worker("w1")).new(trial(1, None), 0.0) == ["w1"]
    assert looking(worker("w0", runs=1)).new(trial(1, None), 0.0) == []


def test_a_victim_is_not_called_back_to_where_it_was_hurt():
    assert looking(worker("w0"), worker("w1")).new(trial(1, avoid="GPU-w0"), 0.0) == ["w1"]


def test_whoever_does_not_come_is_replaced_and_comes_last_for_a_while():
    """It may be dead: its record lives for some seconds yet."""
    calls = looking(worker("w0"), worker("w1"))
    assert calls.new(trial(1), 0.0) == ["w0"]
    calls.look_at([worker("w0"), worker("w1")])
    assert calls.again([trial(1)], TURN_S / 2) == [], "it has time to come"
    calls.look_at([worker("w0"), worker("w1")])
    assert calls.again([trial(1)], TURN_S * 1.5) == ["w1"]
    calls.look_at([worker("w0"), worker("w1")])
    assert calls.again([], TURN_S * 2) == []
    assert calls.new(trial(2), TURN_S * 2) == ["w1"], "not the one that did not come"
    assert calls.new(trial(3), TURN_S * 2) == ["w0"], "but if there is no other"
    calls.look_at([worker("w0"), worker("w1")])
    assert calls.again([], TURN_S * 2 + LATE_S) == []
    assert calls.new(trial(4), TURN_S * 2 + LATE_S) == ["w0"], "it had its time"


def test_what_found_no_room_is_called_out_once_there_is_some():
    calls = looking(worker("w0", runs=4))
    assert calls.new(trial(1), 0.0) == []
    calls.look_at([worker("w0", runs=3)])
    assert calls.again([trial(1)], 0.01) == ["w0"]
    calls.look_at([worker("w0", runs=3)])
    assert calls.again([trial(1)], 0.02) == [], "once"


def test_what_waits_since_an_earlier_leader_is_called_out():
    calls = Calls()
    calls.look_at([worker("w0"), worker("w1")])
    assert calls.again([trial(1), trial(2), trial(3)], 0.0) == ["w0", "w1"]


def test_a_device_that_is_given_to_one_that_waits_is_not_given_to_a_new_one():
    calls = looking(worker("w0"))
    calls.new(trial(1), 0.0)
    calls.look_at([worker("w0"), worker("w1")])
    calls.again([trial(1)], 0.1)
    assert calls.new(trial(2), 0.1) == ["w1"]
