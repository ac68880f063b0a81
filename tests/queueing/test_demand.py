"""How many trials there are to run, as an autoscaler reads it."""

from __future__ import annotations

import pytest
from support.valkey import count_round_trips

from vrampool.queueing import Demand


def test_it_is_the_length_of_a_plain_list_that_ends_by_itself(connection, pool):
    """KEDA's trigger `redis` takes the length of `listName`; what is not there counts as 0."""
    demand = Demand(connection, pool)
    key = f"vrampool:{pool}:demand"
    demand.tell(5)
    assert (connection.type(key), connection.llen(key)) == (b"list", 5)
    assert 0 < connection.ttl(key) <= 3_600
    demand.tell(3)
    assert connection.llen(key) == 3
    demand.tell(0)
    assert connection.exists(key) == 0


def test_it_is_bounded(connection, pool):
    demand = Demand(connection, pool)
    demand.tell(10**9)
    assert connection.llen(f"vrampool:{pool}:demand") == Demand.MOST


def test_it_is_written_when_it_is_news_and_from_time_to_time(connection, pool, monkeypatch):
    now = [0.0]
    demand = Demand(connection, pool, clock=lambda: now[0])
    trips = count_round_trips(connection, monkeypatch)
    demand.tell(2)
    demand.tell(2)
    assert trips.count == 1
    now[0] += 400
    demand.tell(2)
    assert trips.count == 2, "before the list ends"


def test_only_what_it_lacks_or_has_too_much_is_sent(connection, pool):
    demand = Demand(connection, pool)
    demand.tell(900)
    before = int(connection.info("stats")["total_net_input_bytes"])
    for count in (901, 900, 899, 900):
        demand.tell(count)
        assert connection.llen(f"vrampool:{pool}:demand") == count
        assert 0 < connection.ttl(f"vrampool:{pool}:demand") <= 3_600
    assert int(connection.info("stats")["total_net_input_bytes"]) - before < 3_000


@pytest.mark.parametrize("after", [3, 5, 0])
@pytest.mark.parametrize("there", [0, 2, 6])
def test_it_is_written_whole_when_it_is_not_as_it_was_left(connection, pool, there, after):
    """Redis may have come back empty."""
    demand, key = Demand(connection, pool), f"vrampool:{pool}:demand"
    demand.tell(4)
    connection.delete(key)
    if there:
        connection.rpush(key, *["trial"] * there)
    demand.tell(after)
    assert connection.llen(key) == after


def test_a_new_leader_writes_it_anew(connection, pool):
    first, second = Demand(connection, pool), Demand(connection, pool)
    first.tell(2)
    second.tell(4)
    first.forget()
    first.tell(2)
    assert connection.llen(f"vrampool:{pool}:demand") == 2
