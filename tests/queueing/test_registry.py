"""The records of workers."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
from support.valkey import count_round_trips, until
from support.workers import record

from vrampool.queueing import Events, MpsState, Registry, RunningTrial
from vrampool.queueing.names import Names

GIB = 1024**3


@pytest.fixture
def registry(connection, pool) -> Registry:
    return Registry(connection, pool)


def test_a_record_comes_back_as_it_was_written(registry):
    written = record(
        state="paused",
        reason="paused by hand",
        running=(RunningTrial("digits", 7, 4 * GIB, None, 12.5), RunningTrial("digits", 8, GIB, GIB // 2, 13.0)),
        refused={"sub1": "bundle needs Python 3.12"},
        versions={"python": "3.11.7", "wire": "1"},
        mps=MpsState("on", clients=2, outside={"train.py:objective": "a fault"}),
        beat_at=99.5,
    )
    registry.beat(written, 60)
    registry.beat(record("w0"), 60)
    assert registry.workers() == [record("w0"), written]


def _runs(*numbers: int) -> tuple[RunningTrial, ...]:
    return tuple(RunningTrial("digits", number, GIB, GIB, 1.0) for number in numbers)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"running": _runs(1, 2)}, {"running": _runs(2)}, True),
        ({"state": "paused"}, {}, True),
        ({"slots": 2}, {"slots": 3}, True),
        ({"free_bytes": 10 * GIB}, {"free_bytes": 20 * GIB}, True),
        ({"free_bytes": 10 * GIB}, {"free_bytes": 11 * GIB}, False),
        ({"running": _runs(1), "slots": 3}, {"running": _runs(1, 2), "slots": 3}, True),
        ({"running": _runs(1), "slots": 2}, {"running": _runs(2), "slots": 2}, True),
        ({"running": _runs(1), "slots": 2}, {"running": _runs(1, 2), "slots": 2}, False),
        ({"running": _runs(1), "slots": 2}, {"running": _runs(1), "slots": 2}, False),
        ({"running": _runs(1), "slots": 1}, {"running": _runs(2), "slots": 1}, False),
        ({"running": _runs(1), "slots": 3}, {"running": _runs(1, 2), "slots": 3, "free_bytes": 0}, False),
        ({"running": _runs(1)}, {"running": (), "state": "draining"}, False),
    ],
)
def test_room_is_told_to_whoever_waits_for_it(registry, connection, pool, before, after, told):
    """A trial's end is told before its memory is back: a coordinator that looked then would wait for its next look.

    And it looks again when what it had made was taken, or it would fill a device by one trial a second.
    """
    registry.beat(record(**before), 60)
    with Events(connection, pool).subscribe() as listener:
        registry.beat(record(**after), 60)
        Events(connection, pool).publish({"kind": "last"})
        heard = []
        until(lambda: heard.extend(event["kind"] for event in listener.read()) or "last" in heard, what="the last")
    assert ("room" in heard) is told


def test_a_silent_worker_disappears_by_itself(registry, connection, pool):
    registry.beat(record("w1"), 0.05)
    registry.beat(record("w2"), 60)
    until(lambda: [worker.name for worker in registry.workers()] == ["w2"], what="the end of w1's record")
    registry.beat(record("w2"), 60)
    assert connection.zrange(Names(pool).workers, 0, -1) == [b"w2"], "and leaves nothing behind"


def test_a_worker_that_ends_in_order_disappears_at_once(registry):
    registry.beat(record("w1"), 60)
    registry.remove("w1")
    registry.remove("w1")
    assert registry.workers() == []


def test_workers_register_again_after_redis_came_back_empty(registry, connection):
    registry.beat(record("w1"), 60)
    connection.flushall()
    assert registry.workers() == [] and registry.largest_budget(time.time()) is None
    registry.beat(record("w1"), 60)
    assert registry.workers() == [record("w1")] and registry.largest_budget(time.time()) == 119 * GIB


def test_a_record_of_a_newer_or_broken_worker_hurts_nobody(registry, connection, pool):
    names = Names(pool)
    for name in ("newer", "broken", "gone"):
        registry.beat(record(name), 60)
    newer = {**dataclasses.asdict(record("newer")), "a_field_of_tomorrow": 1}
    connection.set(names.worker_prefix + "newer", json.dumps(newer))
    connection.set(names.worker_prefix + "broken", "{")
    connection.delete(names.worker_prefix + "gone")
    assert registry.workers() == [record("newer")]


def test_the_largest_budget_counts_devices_of_the_last_day(registry, connection, pool):
    registry.beat(record("small", budget_bytes=10 * GIB), 60)
    registry.beat(record("large", budget_bytes=50 * GIB), 60)
    registry.remove("large")
    now = time.time()
    assert registry.largest_budget(now) == 50 * GIB
    names = Names(pool)
    connection.zincrby(names.budgets_seen, -25 * 3600 * 1000, "GPU-large")
    assert registry.largest_budget(now) == 10 * GIB
    registry.beat(record("small", budget_bytes=9 * GIB), 60)
    assert registry.largest_budget(now) == 9 * GIB, "a device counts with its newest budget"
    assert connection.hkeys(names.budgets) == [b"GPU-small"], "old devices are forgotten"


def test_a_device_that_was_not_read_yet_is_not_taken_for_the_largest(registry):
    """Its budget holds the driver's part too: a trial would wait for more than there is, and for ever."""
    registry.beat(record("w1", grantable_bytes=0), 60)
    assert registry.largest_budget(time.time()) is None
    registry.beat(record("w1", grantable_bytes=110 * GIB), 60)
    assert registry.largest_budget(time.time()) == 110 * GIB


def test_a_beat_and_a_look_are_one_round_trip_each(registry, connection, monkeypatch):
    registry.beat(record("w1"), 60)
    registry.workers()  # the server learns the script
    trips = count_round_trips(connection, monkeypatch)
    registry.beat(record("w1"), 60)
    assert trips.count == 1
    registry.workers()
    assert trips.count == 2
    registry.largest_budget(time.time())
    assert trips.count == 3


def test_everything_a_beat_writes_has_an_end(registry, connection):
    registry.beat(record("w1"), 60)
    assert all(connection.ttl(key) > 0 for key in connection.keys("vrampool:*"))
