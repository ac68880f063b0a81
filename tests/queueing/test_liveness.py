"""Liveness leases: who holds a trial, and how others know that he is gone."""

from __future__ import annotations

import pytest
from support.valkey import count_round_trips, until

from vrampool.queueing import Liveness
from vrampool.queueing.names import Names


@pytest.fixture
def liveness(connection, pool) -> Liveness:
    return Liveness(connection, pool)


def test_a_lease_lives_as_long_as_it_is_renewed_and_ends_by_itself(liveness):
    assert liveness.renew({"a-1": "w1", "a-2": "w1"}, 60_000) == []
    assert liveness.alive(["a-1", "a-2", "a-3"]) == {"a-1": True, "a-2": True, "a-3": False}
    assert liveness.renew({"a-1": "w1"}, 50) == []
    until(lambda: not liveness.alive(["a-1"])["a-1"], what="the end of the lease")
    assert liveness.alive(["a-2"]) == {"a-2": True}


def test_leases_are_written_again_after_redis_came_back_empty(liveness, connection):
    liveness.renew({"a-1": "w1"}, 60_000)
    connection.flushall()
    assert liveness.alive(["a-1"]) == {"a-1": False}
    assert liveness.renew({"a-1": "w1"}, 60_000) == []
    assert liveness.holders(["a-1"]) == {"a-1": "w1"}


def test_a_lease_is_never_taken_from_another_worker(liveness, connection, pool):
    """One that slept learns that its trial has a new holder."""
    liveness.renew({"a-1": "w2"}, 60_000)
    assert liveness.renew({"a-0": "w1", "a-1": "w1", "a-2": "w1"}, 60_000) == ["a-1"]
    assert liveness.holders(["a-0", "a-1", "a-2"]) == {"a-0": "w1", "a-1": "w2", "a-2": "w1"}
    assert connection.pttl(Names(pool).live("a-2")) > 0


def test_only_its_holder_releases_a_lease(liveness):
    liveness.renew({"a-1": "w1"}, 60_000)
    assert liveness.release("a-1", "w2") is False
    assert liveness.release("a-1", "w1") is True
    assert liveness.release("a-1", "w1") is False
    assert liveness.alive(["a-1"]) == {"a-1": False}


def test_nothing_held_and_nothing_asked_is_fine(liveness):
    assert liveness.renew({}, 1_000) == [] and liveness.alive([]) == {}


def test_the_server_tells_its_run_and_uptime(liveness):
    run_id, uptime_s = liveness.server()
    assert len(run_id) == 40 and uptime_s >= 0 and liveness.server()[0] == run_id


def test_any_number_of_leases_is_renewed_in_one_round_trip(liveness, connection, monkeypatch):
    liveness.renew({"a-1": "w1"}, 60_000)
    trips = count_round_trips(connection, monkeypatch)
    liveness.renew({f"a-{n}": "w1" for n in range(50)}, 60_000)
    liveness.alive([f"a-{n}" for n in range(50)])
    assert trips.count == 2
