"""The workers' records for one who looks again and again: what changed is read, and nothing is missed."""

from __future__ import annotations

import dataclasses
import json

import pytest
from support.valkey import count_round_trips, until
from support.workers import record

from vrampool.queueing import Registry, Roster
from vrampool.queueing.names import Names
from vrampool.queueing.roster import WHOLE_S

GIB = 1024**3
LIFE_S = 60.0


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(connection, pool) -> Registry:
    return Registry(connection, pool)


@pytest.fixture
def roster(connection, pool, clock) -> Roster:
    return Roster(connection, pool, LIFE_S, clock)


def bytes_out(connection) -> int:
    return int(connection.info("stats")["total_net_output_bytes"])


def test_it_returns_what_the_registry_returns(registry, roster):
    assert roster.workers() == []
    for name in ("w1", "w0", "w2"):
        registry.beat(record(name), LIFE_S)
    assert roster.workers() == registry.workers() == [record("w0"), record("w1"), record("w2")]
    registry.beat(record("w1", free_bytes=GIB), LIFE_S)
    assert roster.workers() == registry.workers()


def _now_ms(connection) -> float:
    seconds, micros = connection.time()
    return seconds * 1000 + micros // 1000


def test_what_has_not_changed_is_not_read_again(registry, roster, connection, pool, monkeypatch):
    for index in range(100):
        registry.beat(record(f"w{index:02}"), LIFE_S)
    before = bytes_out(connection)
    roster.workers()
    whole = bytes_out(connection) - before
    written_ms = int(max(score for _, score in connection.zrange(Names(pool).workers, 0, -1, withscores=True)))
    until(lambda: _now_ms(connection) > written_ms - LIFE_S * 1000, what="the next millisecond")
    roster.workers()
    registry.beat(record("w42", free_bytes=GIB), LIFE_S)
    before = bytes_out(connection)
    trips = count_round_trips(connection, monkeypatch)
    assert roster.workers()[42].free_bytes == GIB
    assert trips.count == 1
    assert bytes_out(connection) - before < whole / 10


def test_a_worker_that_ended_in_order_is_gone_at_once(registry, roster):
    for name in ("w0", "w1"):
        registry.beat(record(name), LIFE_S)
    roster.workers()
    registry.remove("w0")
    assert roster.workers() == [record("w1")]


def test_a_silent_worker_disappears_by_itself(registry, connection, pool, clock):
    roster = Roster(connection, pool, 0.05, clock)
    registry.beat(record("w0"), 0.05)
    assert roster.workers() == [record("w0")]
    until(lambda: roster.workers() == [], what="the end of its record")


def test_one_that_came_while_another_went_is_seen_after_a_while(registry, roster, clock):
    registry.beat(record("w0"), LIFE_S)
    roster.workers()
    registry.remove("w0")
    registry.beat(record("w1"), LIFE_S)
    assert record("w1") in roster.workers()
    clock.now_s += WHOLE_S + 0.1
    assert roster.workers() == [record("w1")]


def test_a_worker_whose_record_lives_for_less_time_is_seen_after_a_while(registry, roster, clock):
    """By its end it looks as if it had been written long ago."""
    registry.beat(record("w0"), LIFE_S / 2)
    roster.workers()
    registry.beat(record("w0", free_bytes=GIB), LIFE_S / 2)
    roster.workers()
    clock.now_s += WHOLE_S + 0.1
    assert roster.workers() == [record("w0", free_bytes=GIB)]


def test_workers_are_seen_again_after_redis_came_back_empty(registry, roster, connection):
    registry.beat(record("w0"), LIFE_S)
    assert roster.workers() == [record("w0")]
    connection.flushall()
    assert roster.workers() == []
    registry.beat(record("w0", free_bytes=GIB), LIFE_S)
    assert roster.workers() == [record("w0", free_bytes=GIB)]


def test_a_record_of_a_newer_or_broken_worker_hurts_nobody(registry, roster, connection, pool):
    names = Names(pool)
    for name in ("newer", "broken", "gone"):
        registry.beat(record(name), LIFE_S)
    newer = {**dataclasses.asdict(record("newer")), "a_field_of_tomorrow": 1}
    connection.set(names.worker_prefix + "newer", json.dumps(newer))
    connection.set(names.worker_prefix + "broken", "{")
    connection.delete(names.worker_prefix + "gone")
    assert roster.workers() == [record("newer")]
    registry.beat(record("broken"), LIFE_S)
    assert roster.workers() == [record("broken"), record("newer")]
