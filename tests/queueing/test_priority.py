"""Trials of a submission with a higher priority are taken first."""

from __future__ import annotations

import pytest
from support.valkey import SIGNER, ticket

from vrampool.queueing import JobQueue, Offer, take


@pytest.fixture
def queue(connection, pool) -> JobQueue:
    return JobQueue(connection, pool, SIGNER)


def numbers(queue: JobQueue) -> list[int]:
    return [job.number for job in queue.waiting()]


def test_a_higher_priority_goes_ahead_of_what_waits_already(queue, pool, connection):
    queue.enqueue([ticket(pool, n) for n in (1, 2)])
    queue.enqueue([ticket(pool, n, submission_id="urgent") for n in (10, 11)], priority=5)
    queue.enqueue([ticket(pool, n, submission_id="later") for n in (20,)], priority=-1)
    queue.enqueue([ticket(pool, n, submission_id="soon") for n in (30,)], priority=1)
    queue.enqueue([ticket(pool, 3)])
    assert numbers(queue) == [10, 11, 30, 1, 2, 3, 20]
    offer = Offer(worker="w1", lease_id="L1", free_bytes=10**12, idle=True, ttl_ms=6_000)
    taken = take(connection, pool, offer)
    assert taken is not None and taken.submission_id == "urgent"


def test_a_retry_goes_ahead_of_its_equals_only(queue, pool):
    queue.enqueue([ticket(pool, n) for n in (1, 2)])
    queue.enqueue([ticket(pool, 10, submission_id="urgent")], priority=5)
    queue.enqueue([ticket(pool, n) for n in (7, 8)], front=True)
    queue.enqueue([ticket(pool, n, submission_id="urgent") for n in (11, 12)], priority=5, front=True)
    assert numbers(queue) == [11, 12, 10, 7, 8, 1, 2]
