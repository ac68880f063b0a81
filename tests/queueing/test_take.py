"""Taking a trial that fits, and undoing it."""

from __future__ import annotations

import threading
import zlib
from contextlib import ExitStack

import pytest
from support.valkey import SIGNER, ticket, until

from vrampool.errors import MessageError
from vrampool.queueing import (
    JobQueue,
    Liveness,
    Offer,
    Subscription,
    Taken,
    begin,
    connect,
    discard,
    finish,
    open_taken,
    put_back,
    take,
)
from vrampool.queueing.events import Events
from vrampool.queueing.jobs import payload_of
from vrampool.queueing.names import Names
from vrampool.signing import Signer

GIB = 1024**3


@pytest.fixture
def queue(connection, pool) -> JobQueue:
    return JobQueue(connection, pool, SIGNER)


def offer(lease_id: str, worker: str = "w1", **changes) -> Offer:
    values = {"free_bytes": 10 * GIB, "idle": True, "ttl_ms": 6_000, "device_id": "GPU-a", "device_kind": "cuda"}
    return Offer(worker=worker, lease_id=lease_id, **{**values, **changes})


# ---- what fits -------------------------------------------------------------------------------------


def test_the_first_that_fits_is_taken_in_the_list_s_order(queue, connection, pool):
    queue.enqueue([ticket(pool, 1, 20 * GIB), ticket(pool, 2, 4 * GIB), ticket(pool, 3, 2 * GIB)])
    taken = take(connection, pool, offer("L1"))
    assert (taken.number, taken.vram_bytes) == (2, 4 * GIB)
    assert [job.number for job in queue.waiting()] == [1, 3]


def test_a_request_of_exactly_the_free_bytes_fits_and_one_byte_more_does_not(queue, connection, pool):
    queue.enqueue([ticket(pool, 1, 80 * GIB)])
    assert take(connection, pool, offer("L1", free_bytes=80 * GIB - 1)) is None
    assert take(connection, pool, offer("L2", free_bytes=80 * GIB)).number == 1


def test_an_exclusive_trial_comes_to_an_idle_device_only(queue, connection, pool):
    queue.enqueue([ticket(pool, 1, None)])
    assert take(connection, pool, offer("L1", idle=False, free_bytes=10**15)) is None
    taken = take(connection, pool, offer("L2", idle=True, free_bytes=0))
    assert taken.number == 1 and taken.vram_bytes is None


def test_a_device_that_is_avoided_is_passed_over_by_that_device_only(queue, connection, pool):
    queue.enqueue([ticket(pool, 1)], avoid="GPU-x,GPU-a")
    assert take(connection, pool, offer("L1", device_id="GPU-a")) is None
    assert take(connection, pool, offer("L2", device_id="GPU-b")).number == 1


def test_avoiding_ends_so_that_a_pool_with_one_device_goes_on(queue, connection, pool):
    queue.enqueue([ticket(pool, 1)], avoid="GPU-a", avoid_s=0.1)
    assert take(connection, pool, offer("L1")) is None
    assert until(lambda: take(connection, pool, offer("L2"))).number == 1


@pytest.mark.parametrize(
    ("requires", "capabilities", "fits"),
    [
        ("", (), True),
        ("cuda", (), True),
        ("cpu", (), False),
        ("cuda,py3.11", ("py3.11",), True),
        ("cuda,py3.11", ("py3.12",), False),
        ("py3.1", ("py3.11",), False),
    ],
)
def test_a_worker_needs_every_capability_that_is_required(queue, connection, pool, requires, capabilities, fits):
    queue.enqueue([ticket(pool, 1)], requires=requires)
    assert (take(connection, pool, offer("L1", capabilities=capabilities)) is not None) is fits


def test_submissions_that_a_worker_cannot_run_are_passed_over(queue, connection, pool):
    queue.enqueue([ticket(pool, 1, submission_id="a"), ticket(pool, 2, submission_id="b")])
    assert take(connection, pool, offer("L1", refuse_submissions=("a",))).submission_id == "b"
    assert take(connection, pool, offer("L2", refuse_submissions=("a",))) is None
    assert take(connection, pool, offer("L3")).submission_id == "a"


def test_one_take_looks_at_the_first_64(queue, connection, pool):
    queue.enqueue([ticket(pool, n, 20 * GIB) for n in range(64)] + [ticket(pool, 64, GIB)])
    assert take(connection, pool, offer("L1")) is None
    queue.cancel(["sub1-0"])
    assert take(connection, pool, offer("L2")).number == 64


def test_a_job_whose_hash_was_deleted_leaves_the_list_and_blocks_nobody(queue, connection, pool):
    names = Names(pool)
    queue.enqueue([ticket(pool, 1), ticket(pool, 2)])
    connection.delete(names.job("sub1-1"))
    assert take(connection, pool, offer("L1")).number == 2
    assert connection.llen(names.waiting) == 0


def test_a_plain_rq_job_in_our_queue_is_left_alone(queue, connection, pool):
    """Somebody else may have enqueued a function under our name; it is not ours to run or to lose."""
    from rq import Queue

    Queue(pool, connection=connection).enqueue("time.sleep", 1)
    queue.enqueue([ticket(pool, 1)])
    assert take(connection, pool, offer("L1")).number == 1
    assert take(connection, pool, offer("L2")) is None
    assert connection.llen(Names(pool).waiting) == 1


# ---- once ------------------------------------------------------------------------------------------


def test_two_takers_get_each_of_200_jobs_once(queue, valkey, connection, pool):
    queue.enqueue([ticket(pool, n) for n in range(200)])
    start, taken = threading.Barrier(2), {"w1": [], "w2": []}

    def race(worker: str) -> None:
        client = connect(valkey, role=worker)
        start.wait()
        while (found := take(client, pool, offer(f"{worker}-{len(taken[worker])}", worker))) is not None:
            taken[worker].append(found.job_id)
        client.close()

    threads = [threading.Thread(target=race, args=(worker,)) for worker in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken["w1"] and taken["w2"], "both must have had their share, or this was no race"
    assert sorted(taken["w1"] + taken["w2"]) == sorted(f"sub1-{n}" for n in range(200))
    holders = Liveness(connection, pool).holders(taken["w1"] + taken["w2"])
    assert all(holders[job_id] == worker for worker, jobs in taken.items() for job_id in jobs)


def test_a_take_repeated_with_its_lease_id_gets_the_same_answer(queue, connection, pool):
    """The reply was lost and redis-py sent the command again: one job leaves the list, not two."""
    queue.enqueue([ticket(pool, n) for n in range(3)])
    first, again = take(connection, pool, offer("L1")), take(connection, pool, offer("L1"))
    assert first.job_id == again.job_id == "sub1-0" and first.payload == again.payload
    assert len(queue.waiting()) == 2
    assert connection.lrange(Names(pool).intermediate, 0, -1) == [b"sub1-0"]
    assert 0 < connection.pttl(Names(pool).answer_prefix + "L1") <= 60_000


def test_a_lease_id_that_gave_its_job_up_gets_no_old_answer(queue, connection, pool):
    queue.enqueue([ticket(pool, 1)])
    put_back(connection, pool, take(connection, pool, offer("L1")).job_id, "L1")
    other = take(connection, pool, offer("L2", "w2"))
    assert other.number == 1
    assert take(connection, pool, offer("L1")) is None


def test_a_lease_id_whose_job_went_to_another_gets_no_old_answer(queue, connection, pool):
    """The worker was frozen before the answer reached it, and sends its take again when it wakes."""
    queue.enqueue([ticket(pool, 1)])
    take(connection, pool, offer("L1", "frozen"))
    connection.delete(Names(pool).live("sub1-1"))
    queue.enqueue([ticket(pool, 1)])
    assert take(connection, pool, offer("L2", "w2")).number == 1
    assert take(connection, pool, offer("L1", "frozen")) is None
    assert connection.get(Names(pool).live("sub1-1")) == b"w2"


def test_what_is_taken_is_held_and_in_exactly_one_list(queue, connection, pool):
    names = Names(pool)
    queue.enqueue([ticket(pool, 1)])
    take(connection, pool, offer("L1", "w7", ttl_ms=5_000))
    assert connection.get(names.live("sub1-1")) == b"w7" and 0 < connection.pttl(names.live("sub1-1")) <= 5_000
    assert connection.lrange(names.intermediate, 0, -1) == [b"sub1-1"] and connection.llen(names.waiting) == 0


def test_a_job_that_is_handed_out_a_second_time_stays_with_the_worker_that_lives(queue, connection, pool):
    """RQ's clean-up puts it back when it thinks it stuck; the second worker would take the trial from the first."""
    names = Names(pool)
    queue.enqueue([ticket(pool, 1), ticket(pool, 2)])
    take(connection, pool, offer("L1", "w1"))
    connection.lpush(names.waiting, "sub1-1")
    assert take(connection, pool, offer("L2", "w2")).number == 2
    assert connection.get(names.live("sub1-1")) == b"w1"
    assert connection.llen(names.waiting) == 0
    connection.delete(names.live("sub1-1"))
    connection.lpush(names.waiting, "sub1-1")
    assert take(connection, pool, offer("L3", "w2")).number == 1, "its worker is gone"


def test_the_wait_is_told(queue, connection, pool):
    queue.enqueue([ticket(pool, 1)])
    name = Names(pool).job("sub1-1")
    connection.hincrby(name, "queued_at_ms", -90_000)
    assert take(connection, pool, offer("L1")).wait_s == pytest.approx(90, abs=5)


# ---- undoing ---------------------------------------------------------------------------------------


def test_put_back_restores_the_place_or_goes_to_the_end(queue, connection, pool):
    names = Names(pool)
    queue.enqueue([ticket(pool, n) for n in range(3)])
    assert put_back(connection, pool, take(connection, pool, offer("L1")).job_id, "L1")
    assert [job.number for job in queue.waiting()] == [0, 1, 2]
    assert put_back(connection, pool, take(connection, pool, offer("L2")).job_id, "L2", front=False)
    assert [job.number for job in queue.waiting()] == [1, 2, 0]
    assert connection.llen(names.intermediate) == 0 and not connection.keys(names.live("*"))


def test_put_back_happens_once_even_when_sent_twice(queue, connection, pool):
    queue.enqueue([ticket(pool, 1)])
    take(connection, pool, offer("L1"))
    assert put_back(connection, pool, "sub1-1", "L1") is True
    assert put_back(connection, pool, "sub1-1", "L1") is False
    assert len(queue.waiting()) == 1 and connection.llen(Names(pool).waiting) == 1


def test_a_late_put_back_does_not_take_the_job_from_its_new_holder(queue, connection, pool):
    """The first worker was frozen, its lease ran out, the trial was enqueued again and taken by another."""
    names = Names(pool)
    queue.enqueue([ticket(pool, 1)])
    take(connection, pool, offer("L1", "frozen"))
    connection.delete(names.live("sub1-1"))
    queue.enqueue([ticket(pool, 1)])
    take(connection, pool, offer("L2", "w2"))
    assert put_back(connection, pool, "sub1-1", "L1") is False
    assert discard(connection, pool, "sub1-1", "L1") is False
    assert connection.get(names.live("sub1-1")) == b"w2" and queue.waiting() == []


def test_a_worker_that_refused_a_trial_for_good_is_not_offered_it_again(queue, connection, pool):
    queue.enqueue([ticket(pool, 1)])
    for worker in ("w1", "w2"):
        taken = take(connection, pool, offer(f"L-{worker}", worker))
        put_back(connection, pool, taken.job_id, f"L-{worker}", refused_by=worker)
    assert queue.waiting()[0].refused_by == ("w1", "w2")
    assert take(connection, pool, offer("L3", "w1")) is None and take(connection, pool, offer("L4", "w2")) is None
    assert take(connection, pool, offer("L5", "w3")).number == 1


def test_discard_leaves_nothing_behind(queue, connection, pool):
    queue.enqueue([ticket(pool, 1)])
    take(connection, pool, offer("L1"))
    assert discard(connection, pool, "sub1-1", "L1") is True
    names = Names(pool)
    assert not connection.exists(
        names.job("sub1-1"), names.live("sub1-1"), names.intermediate, names.waiting, names.answer_prefix + "L1"
    )


def test_enqueue_and_put_back_wake_who_listens(queue, connection, pool):
    with Events(connection, pool).subscribe() as events:
        assert isinstance(events, Subscription)
        queue.enqueue([ticket(pool, 1)])
        assert events.wait(10)[0] == {"kind": "enqueued"}
        put_back(connection, pool, take(connection, pool, offer("L1")).job_id, "L1")
        assert events.wait(10)[0] == {"kind": "put_back"}


def test_who_is_called_hears_it_and_nobody_else(queue, connection, pool):
    """Each listener costs Redis some work for each event: with 1 000 workers more than all else that a trial costs."""
    events = Events(connection, pool)
    names = ("w1", "w2", "w3")
    with ExitStack() as stack:
        workers = {name: stack.enter_context(events.subscribe(name)) for name in names}
        heard = workers | {"": stack.enter_context(events.subscribe())}
        queue.enqueue([ticket(pool, 1)], workers=["w1"])
        queue.enqueue([ticket(pool, 2)], workers=[])
        queue.call(["w2", "w3"])
        queue.enqueue([ticket(pool, 3)])
        events.publish({"kind": "last"})
        found = {name: kinds_until_last(listener) for name, listener in heard.items()}
    assert found == {name: ["enqueued", "enqueued", "last"] for name in names} | {"": ["enqueued", "last"]}


def test_workers_do_not_hear_that_a_trial_ended(queue, connection, pool):
    events = Events(connection, pool)
    with events.subscribe("w1") as worker, events.subscribe() as watcher:
        queue.enqueue([ticket(pool, 1)], workers=["w1"])
        taken = take(connection, pool, offer("L1", "w1"))
        finish(connection, pool, taken.job_id, "w1", begin(connection, pool, taken.job_id, "w1", 60), "finished")
        events.publish({"kind": "last"})
        assert kinds_until_last(worker) == ["enqueued", "last"]
        assert kinds_until_last(watcher) == ["told", "last"]


def kinds_until_last(listener: Subscription) -> list[str]:
    kinds: list[str] = []
    until(lambda: kinds.extend(event["kind"] for event in listener.wait(1)) or "last" in kinds, what="the last event")
    return kinds


# ---- what is taken is checked ----------------------------------------------------------------------


def test_a_taken_ticket_is_opened_with_the_pool_s_secret(queue, connection, pool):
    queue.enqueue([ticket(pool, 1, None)])
    taken = take(connection, pool, offer("L1"))
    assert open_taken(SIGNER, pool, taken) == ticket(pool, 1, None)
    with pytest.raises(MessageError, match="another secret"):
        open_taken(Signer(b"another secret of 32 bytes......"), pool, taken)
    with pytest.raises(MessageError, match="pool"):
        open_taken(SIGNER, "other", taken)


@pytest.mark.parametrize("field", ["vram_bytes", "number", "submission"])
def test_plain_fields_that_differ_from_the_ticket_are_refused(queue, connection, pool, field):
    """They steer the take and are not signed: a job shrunk by hand would run over its neighbours."""
    queue.enqueue([ticket(pool, 1, 9 * GIB)])
    connection.hset(Names(pool).job("sub1-1"), field, 1 if field != "number" else 5)
    taken = take(connection, pool, offer("L1"))
    with pytest.raises(MessageError, match="altered"):
        open_taken(SIGNER, pool, taken)


def test_a_replayed_payload_is_refused(queue, connection, pool):
    names = Names(pool)
    queue.enqueue([ticket(pool, 1), ticket(pool, 2)])
    connection.hset(names.job("sub1-2"), "data", connection.hget(names.job("sub1-1"), "data"))
    assert open_taken(SIGNER, pool, take(connection, pool, offer("L1"))).number == 1
    with pytest.raises(MessageError, match="replayed"):
        open_taken(SIGNER, pool, take(connection, pool, offer("L2")))


def test_a_job_that_cannot_be_read_is_thrown_away_and_told(queue, connection, pool):
    names = Names(pool)
    queue.enqueue([ticket(pool, 1), ticket(pool, 2)])
    connection.hset(names.job("sub1-1"), "data", zlib.compress(b"x" * 10_000_000))
    with pytest.raises(MessageError, match="sub1-1 cannot be read"):
        take(connection, pool, offer("L1"))
    assert not connection.exists(names.job("sub1-1")) and queue.known(["sub1-1"]) == set()
    assert take(connection, pool, offer("L2")).number == 2


def test_a_payload_unpacks_no_further_than_a_ticket_needs():
    assert payload_of(zlib.compress(b"v1:abc")) == b"v1:abc"
    assert payload_of(b"not compressed") == b"not compressed"
    with pytest.raises(MessageError, match="more than"):
        payload_of(zlib.compress(b"x" * 10_000_000))


def test_begin_of_a_job_that_another_worker_holds_is_refused(queue, connection, pool):
    queue.enqueue([ticket(pool, 1)])
    taken: Taken = take(connection, pool, offer("L1", "w1"))
    connection.set(Names(pool).live(taken.job_id), "w2")
    assert begin(connection, pool, taken.job_id, "w1", 30) is None
    assert connection.zcard(Names(pool).started) == 0
