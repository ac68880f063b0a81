"""A take that finds nothing that fits says what a little more memory would admit."""

from __future__ import annotations

import pytest
from support.valkey import SIGNER, ticket

from vrampool.queueing import JobQueue, Offer, ask

GIB = 1024**3


@pytest.fixture
def queue(connection, pool) -> JobQueue:
    return JobQueue(connection, pool, SIGNER)


def offer(**changes) -> Offer:
    values = {"free_bytes": 2 * GIB, "idle": False, "ttl_ms": 6_000, "device_id": "GPU-a", "device_kind": "cuda"}
    return Offer(worker="w1", lease_id="L1", **{**values, **changes})


def test_the_smallest_of_what_waits_is_told(queue, connection, pool):
    queue.enqueue([ticket(pool, 1, 20 * GIB), ticket(pool, 2, 4 * GIB), ticket(pool, 3, 90 * GIB)])
    assert ask(connection, pool, offer()).smallest_bytes == 4 * GIB
    assert ask(connection, pool, offer(free_bytes=0)).smallest_bytes == 4 * GIB
    assert len(queue.waiting()) == 3, "nothing was taken"


def test_with_nothing_that_waits_nothing_is_told(queue, connection, pool):
    assert ask(connection, pool, offer()).smallest_bytes is None


def test_what_fits_is_taken_whatever_else_waits(queue, connection, pool):
    queue.enqueue([ticket(pool, 1, 20 * GIB), ticket(pool, 2, 1 * GIB)])
    assert ask(connection, pool, offer()).taken.number == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"refuse_submissions": ("sub1",)},
        {"device_kind": "cpu"},
        {"device_id": "GPU-x"},
    ],
)
def test_what_this_worker_could_not_run_anyway_is_not_told(queue, connection, pool, changes):
    queue.enqueue([ticket(pool, 1, 4 * GIB)], requires="cuda", avoid="GPU-x")
    assert ask(connection, pool, offer(**changes)).smallest_bytes is None


def test_a_trial_that_wants_a_device_for_itself_is_not_helped_by_a_little_room(queue, connection, pool):
    queue.enqueue([ticket(pool, 1, None)])
    assert ask(connection, pool, offer()).smallest_bytes is None


def test_a_whole_device_must_have_more_than_what_the_trial_has_failed_with(queue, connection, pool):
    queue.enqueue([ticket(pool, 1, None)], beyond_bytes=20 * GIB)
    assert ask(connection, pool, offer(idle=True, free_bytes=20 * GIB, most_bytes=20 * GIB)).taken is None
    assert [job.beyond_bytes for job in queue.waiting()] == [20 * GIB]
    taken = ask(connection, pool, offer(idle=True, free_bytes=70 * GIB, most_bytes=70 * GIB)).taken
    assert taken is not None and taken.vram_bytes is None
