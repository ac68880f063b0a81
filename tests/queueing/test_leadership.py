"""Leadership: one coordinator at a time, each with a higher epoch than all before."""

from __future__ import annotations

from support.valkey import until

from vrampool.queueing import Leadership
from vrampool.queueing.names import Names


def test_one_leads_and_the_others_do_not(connection, pool):
    first, second = Leadership(connection, pool, "c1"), Leadership(connection, pool, "c2")
    assert first.acquire() is not None and second.acquire() is None
    assert first.renew() is True and second.renew() is False
    assert first.leader() == second.leader() == "c1"


def test_a_leader_that_falls_silent_is_followed_with_a_higher_epoch(connection, pool):
    first, second = Leadership(connection, pool, "c1", ttl_s=0.1), Leadership(connection, pool, "c2")
    before = first.acquire()
    after = until(second.acquire, what="the end of the first's leadership")
    assert after > before
    assert first.renew() is False and first.epoch is None
    first.release()
    assert second.renew() is True, "an old leader's release must not end the new one's leadership"


def test_a_leader_that_ends_in_order_is_followed_at_once(connection, pool):
    first, second = Leadership(connection, pool, "c1"), Leadership(connection, pool, "c2")
    before = first.acquire()
    first.release()
    assert first.leader() is None and second.acquire() > before


def test_acquiring_again_after_a_lost_reply_gives_the_same_epoch(connection, pool):
    leadership = Leadership(connection, pool, "c1")
    assert leadership.acquire() == leadership.acquire()


def test_a_successor_of_the_same_name_is_not_taken_for_us(connection, pool):
    """A host gives its pids out again, and the name is made of host and pid."""
    first, second = Leadership(connection, pool, "host-42"), Leadership(connection, pool, "host-42")
    first.acquire()
    assert second.acquire() is None


def test_epochs_rise_even_when_redis_came_back_empty(connection, pool):
    first, second = Leadership(connection, pool, "c1"), Leadership(connection, pool, "c2")
    before = first.acquire()
    connection.flushall()
    assert second.acquire() > before and first.renew() is False


def test_renewing_prolongs_it(connection, pool):
    leadership = Leadership(connection, pool, "c1", ttl_s=60)
    leadership.acquire()
    connection.pexpire(Names(pool).leader, 1_000)
    assert leadership.renew() and connection.pttl(Names(pool).leader) > 50_000
