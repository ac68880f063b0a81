"""Putting trials into the list: each once, in order, by the leader only."""

from __future__ import annotations

import pytest
from support.valkey import SIGNER, count_round_trips, ticket

from vrampool.errors import StaleLeaderError
from vrampool.queueing import JobQueue, Leadership, Liveness, Offer, begin, discard, finish, put_back, take
from vrampool.queueing.names import Names


@pytest.fixture
def queue(connection, pool) -> JobQueue:
    return JobQueue(connection, pool, SIGNER)


def offer(lease_id: str, worker: str = "w1", **changes) -> Offer:
    values = {"free_bytes": 10**12, "idle": True, "ttl_ms": 6_000, "device_id": "GPU-a", "device_kind": "cuda"}
    return Offer(worker=worker, lease_id=lease_id, **{**values, **changes})


def numbers(queue: JobQueue) -> list[int]:
    return [job.number for job in queue.waiting()]


def test_tickets_stand_in_the_order_they_came_and_retries_ahead(queue, pool):
    queue.enqueue([ticket(pool, n) for n in (1, 2)])
    queue.enqueue([ticket(pool, n) for n in (7, 8)], front=True)
    queue.enqueue([ticket(pool, 3)])
    assert numbers(queue) == [7, 8, 1, 2, 3]


def test_many_tickets_keep_their_order_over_several_batches(queue, pool):
    put = queue.enqueue([ticket(pool, n) for n in range(600)])
    assert numbers(queue) == list(range(600)) and len(put) == 600
    queue.enqueue([ticket(pool, n) for n in range(1000, 1600)], front=True)
    assert numbers(queue) == [*range(1000, 1600), *range(600)]


def test_a_waiting_job_tells_what_it_needs(queue, pool):
    queue.enqueue([ticket(pool, 1, 5_000)], requires="cuda,py3.11", avoid="GPU-a,GPU-b", avoid_s=30)
    queue.enqueue([ticket(pool, 2, None, submission_id="sub2")])
    first, second = queue.waiting()
    assert (first.job_id, first.vram_bytes, first.requires) == ("sub1-1", 5_000, ("cuda", "py3.11"))
    assert first.avoid == ("GPU-a", "GPU-b") and first.avoid_until == pytest.approx(first.queued_at + 30)
    assert (second.submission_id, second.vram_bytes, second.requires) == ("sub2", None, ())


def test_a_ticket_that_waits_already_is_not_put_twice(queue, pool, connection):
    """Neither by a repeated call, nor by a call whose reply was lost."""
    assert queue.enqueue([ticket(pool, 1)]) == ["sub1-1"]
    assert queue.enqueue([ticket(pool, 1), ticket(pool, 2)]) == ["sub1-2"]
    assert queue.enqueue([ticket(pool, 1)], front=True) == []
    assert connection.lrange(Names(pool).waiting, 0, -1) == [b"sub1-1", b"sub1-2"]


def test_a_ticket_that_a_live_worker_holds_is_not_put_again(queue, pool, connection):
    queue.enqueue([ticket(pool, 1)])
    taken = take(connection, pool, offer("L1"))
    assert queue.enqueue([ticket(pool, 1)]) == []
    begin(connection, pool, taken.job_id, "w1", 30)
    assert queue.enqueue([ticket(pool, 1)]) == []
    assert queue.waiting() == []


def test_a_ticket_whose_worker_is_gone_is_put_again_and_leaves_no_trace_of_it(queue, pool, connection):
    """Taken, or even begun, by a worker that died before it claimed the trial."""
    names = Names(pool)
    queue.enqueue([ticket(pool, n) for n in (1, 2)])
    first, second = take(connection, pool, offer("L1")), take(connection, pool, offer("L2"))
    begin(connection, pool, second.job_id, "w1", 30)
    connection.delete(names.live(first.job_id), names.live(second.job_id))  # as their lives end
    assert queue.known(["sub1-1", "sub1-2"]) == set()
    assert queue.enqueue([ticket(pool, n) for n in (1, 2)]) == ["sub1-1", "sub1-2"]
    assert queue.known(["sub1-1", "sub1-2"]) == {"sub1-1", "sub1-2"}
    assert connection.llen(names.intermediate) == 0 and connection.zcard(names.started) == 0
    assert not connection.keys("rq:execution*:sub1-*")
    assert connection.hget(names.job("sub1-2"), "status") == b"queued"


def test_the_time_of_waiting_counts_from_the_first_time(queue, pool, connection):
    queue.enqueue([ticket(pool, 1)])
    since = queue.waiting()[0].queued_at
    take(connection, pool, offer("L1"))
    connection.delete(Names(pool).live("sub1-1"))
    queue.enqueue([ticket(pool, 1)])
    assert queue.waiting()[0].queued_at == since


def test_a_waiting_job_never_expires(queue, pool, connection):
    queue.enqueue([ticket(pool, 1)])
    names = Names(pool)
    assert connection.ttl(names.job("sub1-1")) == -1 and connection.ttl(names.waiting) == -1


def test_a_job_whose_hash_was_deleted_is_unknown_and_put_again_in_its_place(queue, pool, connection):
    queue.enqueue([ticket(pool, n) for n in (1, 2)])
    connection.delete(Names(pool).job("sub1-1"))
    assert numbers(queue) == [2]
    assert queue.known(["sub1-1", "sub1-2"]) == {"sub1-2"}
    assert queue.enqueue([ticket(pool, 1)]) == ["sub1-1"]
    assert numbers(queue) == [1, 2]


def test_after_redis_came_back_empty_the_same_calls_rebuild_everything(queue, pool, connection):
    leadership = Leadership(connection, pool, "c1")
    queue.lead(leadership.acquire())
    queue.enqueue([ticket(pool, n) for n in range(3)])
    take(connection, pool, offer("L1"))
    connection.flushall()
    assert queue.known(["sub1-0", "sub1-1"]) == set() and not leadership.renew()
    queue.lead(leadership.acquire())
    Liveness(connection, pool).renew({"sub1-0": "w1"}, 6_000)  # its worker goes on
    assert queue.enqueue([ticket(pool, n) for n in range(3)]) == ["sub1-1", "sub1-2"]
    assert take(connection, pool, offer("L2")).job_id == "sub1-1"


def test_cancel_removes_what_waits_and_leaves_what_a_worker_holds(queue, pool, connection):
    names = Names(pool)
    queue.enqueue([ticket(pool, n) for n in range(4)])
    take(connection, pool, offer("L0"))
    take(connection, pool, offer("L1"))
    connection.delete(names.live("sub1-1"))  # that worker is gone
    assert queue.cancel([f"sub1-{n}" for n in range(3)] + ["sub1-77"]) == ["sub1-2"]
    assert numbers(queue) == [3]
    assert connection.exists(names.job("sub1-0")), "a live worker holds it"
    assert not connection.exists(names.job("sub1-1"), names.job("sub1-2"))
    assert connection.lrange(names.intermediate, 0, -1) == [b"sub1-0"]
    assert queue.cancel([]) == []


def test_cancel_clears_what_a_dead_worker_left_and_keeps_what_ended_for_people_to_see(queue, pool, connection):
    """The coordinator calls it for a trial that it has just failed as lost."""
    names = Names(pool)
    queue.enqueue([ticket(pool, n) for n in range(3)])
    executions = {}
    for number in range(3):
        taken = take(connection, pool, offer(f"L{number}"))
        executions[number] = begin(connection, pool, taken.job_id, "w1", 30)
    finish(connection, pool, "sub1-2", "w1", executions[2], "finished")
    connection.delete(names.live("sub1-1"))
    assert queue.cancel([f"sub1-{n}" for n in range(3)]) == []
    assert connection.zrange(names.started, 0, -1) == [f"sub1-0:{executions[0]}".encode()]
    left = {key.decode() for key in connection.keys("*sub1-1*")}
    assert left == set()
    assert connection.exists(names.job("sub1-0"), names.job("sub1-2")) == 2


def test_a_ticket_of_another_pool_is_a_programming_error(queue):
    with pytest.raises(ValueError, match="pool"):
        queue.enqueue([ticket("another", 1)])


def test_two_pools_on_one_redis_share_no_trial(queue, pool, connection):
    other = JobQueue(connection, pool + "-b", SIGNER)
    queue.enqueue([ticket(pool, 1)])
    other.enqueue([ticket(pool + "-b", 2, submission_id="sub2")])
    assert other.cancel(["sub1-1"]) == [] and numbers(queue) == [1]
    assert take(connection, pool + "-b", offer("L1")).number == 2
    assert take(connection, pool + "-b", offer("L2")) is None


# ---- the leader's epoch ----------------------------------------------------------------------------


def test_an_old_leader_is_refused_and_enqueues_nothing(queue, pool, connection):
    old, new = Leadership(connection, pool, "c1"), Leadership(connection, pool, "c2")
    queue.lead(old.acquire())
    queue.enqueue([ticket(pool, 1)])
    connection.delete(Names(pool).leader)  # its lease ran out
    with pytest.raises(StaleLeaderError, match="does not lead"):
        queue.enqueue([ticket(pool, 2)])
    successor = JobQueue(connection, pool, SIGNER)
    successor.lead(new.acquire())
    with pytest.raises(StaleLeaderError):
        queue.enqueue([ticket(pool, 2)])
    assert successor.enqueue([ticket(pool, 3)]) == ["sub1-3"]
    assert numbers(queue) == [1, 3]


def test_nobody_enqueues_without_an_epoch_while_somebody_leads(queue, pool, connection):
    Leadership(connection, pool, "c1").acquire()
    with pytest.raises(StaleLeaderError):
        queue.enqueue([ticket(pool, 1)])


# ---- cost ------------------------------------------------------------------------------------------


def test_enqueue_needs_one_round_trip_for_all_and_each_reading_at_most_two(queue, pool, connection, monkeypatch):
    queue.enqueue([ticket(pool, 0)])  # the server knows the scripts now
    take(connection, pool, offer("L0"))
    queue.cancel(["x"])
    trips = count_round_trips(connection, monkeypatch)
    queue.enqueue([ticket(pool, n) for n in range(1, 200)])
    assert trips.count == 1
    queue.known([f"sub1-{n}" for n in range(200)])
    queue.cancel(["sub1-1", "sub1-2"])
    assert trips.count == 3
    queue.waiting()
    assert trips.count == 5


def test_put_back_and_discard_are_told_apart_by_the_queue(queue, pool, connection):
    queue.enqueue([ticket(pool, n) for n in range(2)])
    first = take(connection, pool, offer("L1"))
    put_back(connection, pool, first.job_id, "L1")
    assert queue.known(["sub1-0"]) == {"sub1-0"}
    again = take(connection, pool, offer("L2"))
    discard(connection, pool, again.job_id, "L2")
    assert queue.known(["sub1-0"]) == set()
