"""A trial that was passed over for too long has one device kept free for it."""

from __future__ import annotations

import pytest
from support.crowd import GIB, LIMIT_S, Crowd
from support.valkey import count_round_trips, ticket

from vrampool.queueing import (
    Events,
    Liveness,
    begin,
    discard,
    put_back,
)


@pytest.fixture
def crowd(connection, pool) -> Crowd:
    return Crowd(connection, pool)


@pytest.fixture
def starved(crowd, pool) -> Crowd:
    """Trial 1 wants 16 GiB and has been passed over for longer than the limit by two workers; w2 is the nearer one."""
    crowd.worker("w1", 4)
    crowd.worker("w2", 9)
    crowd.queue.enqueue([ticket(pool, 1, 16 * GIB)])
    crowd.pass_over("w1", "w2")
    return crowd


# ---- when ------------------------------------------------------------------------------------------


def test_before_the_age_limit_no_device_is_kept_free(crowd, pool):
    crowd.worker("w1", 4)
    crowd.queue.enqueue([ticket(pool, 1, None)])
    crowd.asks("w1")
    crowd.pass_time(LIMIT_S - 5)
    crowd.queue.enqueue([ticket(pool, 2, GIB)])
    assert crowd.asks("w1").taken.number == 2, "an exclusive request drains no busy card before its time"
    assert crowd.earmarks == {}


def test_after_it_the_device_is_kept_free_and_nothing_else_comes_in_its_way(starved, pool):
    starved.queue.enqueue([ticket(pool, 2, GIB)])
    assert starved.asks("w1").taken.number == 2, "the other device goes on"
    assert starved.earmarks == {"w2": 1}
    starved.queue.enqueue([ticket(pool, 3, GIB)])
    answer = starved.asks("w2")
    assert answer.taken is None
    assert (answer.earmark.job_id, answer.earmark.vram_bytes, answer.earmark.label) == ("sub1-1", 16 * GIB, "digits/1")


def test_time_counts_from_when_it_was_first_passed_over_not_from_when_it_was_enqueued(crowd, pool):
    """A night without workers makes nothing starve: the first to come would else drain for all of it."""
    crowd.queue.enqueue([ticket(pool, 1, 16 * GIB)])
    crowd.pass_time(10 * LIMIT_S)
    crowd.worker("w1", 4)
    crowd.asks("w1")
    assert crowd.earmarks == {}
    (waiting,) = crowd.queue.waiting()
    assert waiting.waits_s == pytest.approx(10 * LIMIT_S, abs=5) and waiting.passed_over_s < 5


def test_a_trial_that_is_enqueued_again_has_waited_all_the_same(starved, connection, pool):
    connection.lrem(starved.names.waiting, 0, "sub1-1")
    starved.queue.enqueue([ticket(pool, 1, 16 * GIB)])
    starved.asks("w2")
    assert starved.earmarks == {"w2": 1}


def test_a_limit_of_zero_keeps_a_device_free_at_once(crowd, pool):
    crowd.worker("w1", 4)
    crowd.queue.enqueue([ticket(pool, 1, 16 * GIB)])
    crowd.asks("w1", age_limit_ms=0)
    assert crowd.earmarks == {"w1": 1}


def test_it_costs_no_round_trip_more(starved, connection, pool, monkeypatch):
    starved.queue.enqueue([ticket(pool, 2, GIB)])
    trips = count_round_trips(connection, monkeypatch)
    for name in ("w1", "w2", "w2"):
        starved.asks(name)
    assert trips.count == 3


def test_what_stands_behind_others_for_too_long_goes_before_them(crowd, pool):
    """Retries and trials of a higher priority come in before it all the time; each time they take the only gap."""
    crowd.worker("w1", 4)
    crowd.queue.enqueue([ticket(pool, 1, 4 * GIB)])
    for number in range(2, 6):
        crowd.queue.enqueue([ticket(pool, number, 4 * GIB)], front=True)
        assert crowd.asks("w1").taken.number == number
        crowd.pass_time(LIMIT_S / 5)
    crowd.pass_time(LIMIT_S / 4)
    crowd.queue.enqueue([ticket(pool, 6, 4 * GIB), ticket(pool, 7, 4 * GIB)], front=True)
    assert crowd.asks("w1").taken.number == 1
    assert crowd.asks("w1").taken.number == 6 and crowd.earmarks == {}


def test_with_a_limit_of_zero_the_order_stays(crowd, pool):
    crowd.worker("w1", 4)
    crowd.queue.enqueue([ticket(pool, number, 2 * GIB) for number in (1, 2, 3)])
    assert [crowd.asks("w1", age_limit_ms=0).taken.number for _ in range(3)] == [1, 2, 3]


def test_of_two_that_waited_too_long_and_fit_the_one_that_waited_longer_is_taken(crowd, pool):
    crowd.worker("w1", 1)
    crowd.queue.enqueue([ticket(pool, 1, 4 * GIB)])
    crowd.asks("w1")
    crowd.pass_time(5)
    crowd.queue.enqueue([ticket(pool, 2, 3 * GIB)], front=True)
    crowd.pass_over("w1")
    crowd.worker("w1", 10)
    crowd.queue.enqueue([ticket(pool, 3, GIB)], front=True)
    assert [crowd.asks("w1").taken.number for _ in range(3)] == [1, 2, 3]
    assert crowd.earmarks == {}


# ---- which -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asker", ["w1", "w2", "w3"])
def test_the_device_with_least_to_give_back_is_chosen_whoever_asks(crowd, pool, asker):
    crowd.worker("w1", 4)
    crowd.worker("w2", 9)
    crowd.worker("w3", 1)
    crowd.queue.enqueue([ticket(pool, 1, 16 * GIB)])
    crowd.pass_over("w1")
    crowd.asks(asker)
    assert crowd.earmarks == {"w2": 1}


def test_for_a_whole_device_the_one_that_holds_least_is_chosen(crowd, pool):
    crowd.worker("w1", 4, trials=5)
    crowd.worker("w2", 9, trials=2)
    crowd.queue.enqueue([ticket(pool, 1, None)])
    crowd.pass_over("w1", "w2")
    crowd.asks("w1")
    assert crowd.earmarks == {"w2": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "paused"},
        {"state": "quarantined"},
        {"refused": {"sub1": "other source"}},
        {"full_submissions": ("sub1",)},
        {"device_kind": "cpu"},
        {"device_id": "GPU-x"},
        {"most_bytes": 15 * GIB},
        {"most_bytes": None},
    ],
    ids=["paused", "quarantined", "refuses", "full", "lacks", "avoided", "too small", "tells too little"],
)
def test_a_device_that_could_not_run_it_is_not_kept_free(crowd, pool, changes):
    crowd.worker("w1", 4)
    crowd.worker("w2", 9, **changes)
    crowd.queue.enqueue([ticket(pool, 1, 16 * GIB)], requires="cuda", avoid="GPU-x", avoid_s=9999)
    crowd.pass_over("w1")
    crowd.asks("w1")
    assert crowd.earmarks == {"w1": 1}


def test_what_fits_no_device_drains_none(crowd, pool):
    crowd.worker("w1", 4)
    crowd.queue.enqueue([ticket(pool, 1, 30 * GIB)])
    crowd.asks("w1", age_limit_ms=0)
    crowd.queue.enqueue([ticket(pool, 2, GIB)])
    assert crowd.asks("w1", age_limit_ms=0).taken.number == 2 and crowd.earmarks == {}


def test_each_trial_gets_a_device_of_its_own_and_the_longest_waiting_first(crowd, pool):
    crowd.worker("w1", 4)
    crowd.worker("w2", 9)
    crowd.queue.enqueue([ticket(pool, 1, 16 * GIB)])
    crowd.asks("w1")
    crowd.pass_time(5)
    crowd.queue.enqueue([ticket(pool, 2, 12 * GIB), ticket(pool, 3, 12 * GIB)], front=True)
    crowd.pass_over("w1")
    crowd.asks("w1")
    assert crowd.earmarks == {"w2": 1, "w1": 2}, "retries at the front do not push back who waited before"


def test_a_device_that_an_older_one_waits_for_is_not_given_to_a_younger_one_by_a_device_that_can_hold_only_that(
    crowd, pool
):
    """Trial 1 fits w2 alone. Trial 2 fits both, and w2 is nearer; it is w1 that asks."""
    crowd.worker("w1", 2, most_bytes=12 * GIB)
    crowd.worker("w2", 4)
    crowd.queue.enqueue([ticket(pool, 1, 16 * GIB)])
    crowd.asks("w2")
    crowd.pass_time(5)
    crowd.queue.enqueue([ticket(pool, 2, 8 * GIB)])
    crowd.asks("w1", most_bytes=12 * GIB)
    crowd.pass_time(LIMIT_S + 1)
    crowd.asks("w1", most_bytes=12 * GIB)
    assert crowd.earmarks == {"w2": 1, "w1": 2}


# ---- what else -------------------------------------------------------------------------------------


def test_any_other_device_where_it_fits_takes_it_and_wakes_the_one_that_was_kept_free(starved, connection, pool):
    starved.asks("w1")
    starved.worker("w1", 20)
    with Events(connection, pool).subscribe() as events:
        assert starved.asks("w1").taken.number == 1
        assert {"kind": "earmark_ended"} in events.wait(10)
    assert starved.earmarks == {}
    starved.queue.enqueue([ticket(pool, 2, GIB)])
    assert starved.asks("w2").taken.number == 2


def test_the_device_takes_it_before_all_else_as_soon_as_it_fits(starved, pool):
    starved.asks("w2")
    starved.queue.enqueue([ticket(pool, 2, GIB)], front=True)
    starved.worker("w2", 16)
    answer = starved.asks("w2")
    assert (answer.taken.number, answer.earmark) == (1, None)
    assert starved.earmarks == {}


def test_others_get_what_does_not_delay_it_once_the_worker_has_heard(starved, pool):
    starved.queue.enqueue([ticket(pool, 2, 2 * GIB), ticket(pool, 3, GIB)])
    first = starved.asks("w2", room_bytes=9 * GIB)
    assert first.taken is None and first.earmark.job_id == "sub1-1", "it must first work out what it may give to others"
    second = starved.asks("w2", room_bytes=int(1.5 * GIB))
    assert second.taken.number == 3 and second.earmark.job_id == "sub1-1"
    assert starved.asks("w2", room_bytes=0).taken is None


def test_a_whole_device_is_not_given_to_another_while_it_is_kept_free(crowd, pool):
    crowd.worker("w1", 4)
    crowd.queue.enqueue([ticket(pool, 1, 16 * GIB)])
    crowd.pass_over("w1")
    crowd.asks("w1")
    crowd.queue.enqueue([ticket(pool, 2, None)], front=True)
    assert crowd.asks("w1", idle=True, free_bytes=15 * GIB, room_bytes=15 * GIB).taken is None


def test_an_answer_that_was_lost_is_given_again(starved, pool):
    starved.asks("w2")
    starved.worker("w2", 16)
    first, again = starved.asks("w2", lease_id="same"), starved.asks("w2", lease_id="same")
    assert first.taken.job_id == again.taken.job_id == "sub1-1" and starved.earmarks == {}


# ---- its end ---------------------------------------------------------------------------------------


def test_it_ends_with_its_worker_and_another_device_is_found(starved):
    starved.asks("w1")
    starved.registry.remove("w2")
    starved.asks("w1")
    assert starved.earmarks == {"w1": 1}


@pytest.mark.parametrize("changes", [{"state": "draining"}, {"most_bytes": 15 * GIB}, {"refused": {"sub1": "no"}}])
def test_it_ends_when_its_device_cannot_take_the_trial_any_more(starved, changes):
    starved.asks("w1")
    starved.worker("w2", 9, **changes)
    starved.asks("w1")
    assert starved.earmarks == {"w1": 1}


def test_it_moves_on_when_the_worker_itself_says_that_others_hold_too_much(starved):
    starved.asks("w2")
    assert starved.asks("w2", most_bytes=15 * GIB).earmark is None
    assert starved.earmarks == {"w1": 1}


def test_it_ends_when_the_worker_refuses_the_trial_for_good(starved, connection, pool):
    starved.asks("w2")
    starved.worker("w2", 16)
    taken = starved.asks("w2").taken
    put_back(
        connection, pool, taken.job_id, connection.hget(starved.names.job("sub1-1"), "lease").decode(), refused_by="w2"
    )
    starved.worker("w2", 9)
    starved.asks("w2")
    starved.asks("w1")
    assert starved.earmarks == {"w1": 1}


def test_it_ends_with_the_trial(starved, pool):
    starved.asks("w2")
    starved.queue.cancel(["sub1-1"])
    starved.queue.enqueue([ticket(pool, 2, GIB)])
    answer = starved.asks("w2")
    assert (answer.taken.number, answer.earmark) == (2, None) and starved.earmarks == {}


def test_it_ends_when_the_trial_is_thrown_away_after_it_was_taken(starved, connection, pool):
    starved.asks("w2")
    starved.worker("w2", 16)
    starved.asks("w2", lease_id="L")
    discard(connection, pool, "sub1-1", "L")
    assert not connection.exists(starved.names.earmarks)


def test_a_trial_that_comes_back_has_its_device_kept_free_again(starved, connection, pool):
    """The lease grew between the offer and the grant: the ledger says no, and the trial is put back."""
    starved.asks("w2")
    starved.worker("w2", 16)
    taken = starved.asks("w2", lease_id="L").taken
    put_back(connection, pool, taken.job_id, "L")
    starved.worker("w2", 15)
    starved.asks("w2")
    assert starved.earmarks == {"w2": 1}


def test_redis_coming_back_empty_begins_anew(starved, connection, pool):
    starved.asks("w2")
    connection.flushall()
    starved.worker("w2", 9)
    starved.queue.enqueue([ticket(pool, 1, 16 * GIB), ticket(pool, 2, GIB)])
    answer = starved.asks("w2")
    assert (answer.taken.number, answer.earmark) == (2, None)


def test_a_damaged_earmark_is_dropped(starved, connection, pool):
    for value in ("nonsense", "12 sub1-99", "x sub1-1", "12 "):
        connection.hset(starved.names.earmarks, "w1", value)
        starved.asks("w2")
        assert starved.earmarks == {"w2": 1}


def test_two_devices_are_never_kept_free_for_one_trial(starved, connection):
    starved.asks("w1")
    connection.hset(starved.names.earmarks, "w1", "12 sub1-1")
    starved.asks("w1")
    assert len(starved.earmarks) == 1


def test_all_of_it_ends_by_itself(starved, connection):
    starved.asks("w1")
    assert 0 < connection.ttl(starved.names.earmarks) <= 24 * 3600


def test_a_trial_that_runs_is_no_more_held_by_an_earmark(starved, connection, pool):
    """RQ's clean-up puts its job back into the list: a live worker has it."""
    starved.asks("w2")
    starved.worker("w2", 16)
    taken = starved.asks("w2").taken
    assert begin(connection, pool, taken.job_id, "w2", 60)
    connection.lpush(starved.names.waiting, taken.job_id)
    connection.hset(starved.names.earmarks, "w1", f"12 {taken.job_id}")
    starved.asks("w1")
    assert not connection.exists(starved.names.earmarks)
    assert Liveness(connection, pool).holders([taken.job_id]) == {taken.job_id: "w2"}


def test_a_trial_that_found_no_room_before_it_was_made_has_waited_that_long(crowd, pool):
    """The coordinator creates trials when a device has room; one for which none ever has is made after the limit."""
    crowd.worker("w1", 4)
    crowd.queue.enqueue([ticket(pool, 1, 16 * GIB)], waited_s=LIMIT_S + 1)
    (waiting,) = crowd.queue.waiting()
    assert waiting.passed_over_s == pytest.approx(LIMIT_S + 1, abs=5) and waiting.waits_s < 5
    crowd.asks("w1")
    assert crowd.earmarks == {"w1": 1}
