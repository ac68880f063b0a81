"""The waiting trials of a pool, from the side of a worker: take one that fits, or give it back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import redis

from vrampool.errors import MessageError
from vrampool.messages import Ticket
from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.events import hint
from vrampool.queueing.jobs import EXCLUSIVE, payload_of
from vrampool.queueing.names import Names
from vrampool.queueing.scripts import Word, run_script
from vrampool.signing import Signer

#: How many waiting jobs one take looks at.
WINDOW = 64
#: For so long the same lease id gets the same answer.
ANSWER_KEPT_MS = 60_000
#: A worker that says nothing else lets no trial be passed over for longer than this.
AGE_LIMIT_MS = 120_000


@dataclass(frozen=True)
class Offer:
    """What a worker could take now.

    A device may be kept free for a trial that was passed over for too long (`Earmark`). The worker hears of it in the
    answer; from then on it offers `free_bytes` to that trial and `room_bytes` to all others.
    """

    worker: str  #: the worker's name, its own among all workers that ever were
    lease_id: str  #: new for each take; the same when a take is repeated because its answer was lost
    free_bytes: int
    idle: bool  #: nothing runs on the device, so an exclusive trial may come
    ttl_ms: int  #: life of the liveness key that the take writes
    device_id: str = ""
    device_kind: str = ""  #: "cuda" or "cpu"; counts as a capability
    capabilities: tuple[str, ...] = ()  #: what a job's `requires` is compared with; no commas in them
    refuse_submissions: tuple[str, ...] = ()  #: submissions whose trials this worker cannot run
    most_bytes: int | None = None  #: free if no trial were on the device; None: not said, so it is not kept for any
    trials: int = 0  #: that it runs now
    earmark: str = ""  #: the job its device is kept free for, as far as it has heard
    room_bytes: int = 0  #: for all other jobs, so that they do not delay that one
    age_limit_ms: int = AGE_LIMIT_MS  #: a job passed over for longer has a device kept free for it


@dataclass(frozen=True)
class Taken:
    """A job that this worker holds now. Its plain fields are not signed: `open_taken` compares them with the ticket."""

    job_id: str
    submission_id: str
    number: int
    vram_bytes: int | None  #: None: exclusive
    payload: bytes  #: the signed ticket
    wait_s: float  #: from the first enqueue to this take, by Redis's clock


@dataclass(frozen=True)
class Earmark:
    """A waiting job that a worker's device is kept free for, as it was passed over for longer than the age limit."""

    job_id: str
    vram_bytes: int | None  #: None: exclusive
    label: str  #: the trial in words, "digits/31"; not signed, for people only
    since: float  #: seconds since the epoch, by Redis's clock


@dataclass(frozen=True)
class Answer:
    """What a worker hears when it asks for a trial."""

    taken: Taken | None
    earmark: Earmark | None = None  #: what its device is kept free for, after this
    smallest_bytes: int | None = None  #: the least that lacks nothing but memory here; None: no such trial was seen


def take(connection: redis.Redis, pool: str, offer: Offer) -> Taken | None:
    """Take a job as `ask` does, and leave aside what else it says."""
    return ask(connection, pool, offer).taken


@talks_to_redis
def ask(connection: redis.Redis, pool: str, offer: Offer) -> Answer:
    """Take the first of the first 64 waiting jobs that fits.

    The job moves to RQ's intermediate list and its liveness key is written, in one step. Jobs whose hash was deleted
    leave the list on the way. A job that was passed over for longer than the age limit has one device kept free for it:
    of those that could hold it, the one that has least to give back before.

    Round trips: 1. May be repeated with the same lease id.

    Raises:
        MessageError: the job that fitted cannot be read; it was thrown away, the coordinator enqueues it again.
        TransientRedisError: Redis is away. Repeat it with the same lease id, or give that lease up.
    """
    names = Names(pool)
    words = {
        "worker": offer.worker,
        "lease_id": offer.lease_id,
        "free_bytes": offer.free_bytes,
        "idle": offer.idle,
        "ttl_ms": offer.ttl_ms,
        "device_id": offer.device_id,
        "capabilities": [*offer.capabilities, offer.device_kind],
        "refuse_submissions": list(offer.refuse_submissions),
        "trials": offer.trials,
        "earmark": offer.earmark,
        "room_bytes": offer.room_bytes,
        "age_limit_ms": offer.age_limit_ms,
    }
    if offer.most_bytes is not None:
        words["most_bytes"] = offer.most_bytes
    answer = names.answer_prefix + offer.lease_id
    keys = [names.waiting, names.intermediate, answer, names.earmarks, names.workers]
    prefixes = [names.job_prefix, names.live_prefix, names.first_seen_prefix, names.worker_prefix]
    args: list[Word] = [json.dumps(words), *prefixes, WINDOW, ANSWER_KEPT_MS, names.events, hint("earmark_ended")]
    found, kept, smallest_bytes = run_script(connection, "take", keys, args)
    return Answer(
        _read_taken(connection, pool, offer, found) if found else None,
        _read_earmark(kept) if kept else None,
        int(smallest_bytes) if smallest_bytes else None,
    )


def _read_taken(connection: redis.Redis, pool: str, offer: Offer, found: list[Any]) -> Taken:
    job_id: str = found[0].decode()
    try:
        _, now_ms, data, vram_bytes, submission, number, queued_at_ms = found
        size = int(vram_bytes)
        return Taken(
            job_id=job_id,
            submission_id=submission.decode(),
            number=int(number),
            vram_bytes=None if size == EXCLUSIVE else size,
            payload=payload_of(data),
            wait_s=max(0.0, (int(now_ms) - int(queued_at_ms)) / 1000),
        )
    except (MessageError, ValueError, TypeError, AttributeError) as error:
        discard(connection, pool, job_id, offer.lease_id)
        raise MessageError(f"job {job_id} cannot be read ({error}) and was thrown away") from None


def _read_earmark(found: list[bytes | None]) -> Earmark:
    job_id, vram_bytes, description, since_ms = (value.decode(errors="replace") if value else "" for value in found)
    size = int(vram_bytes or EXCLUSIVE)
    return Earmark(job_id, None if size == EXCLUSIVE else size, description or job_id, int(since_ms or 0) / 1000)


def open_taken(signer: Signer, pool: str, taken: Taken) -> Ticket:
    """Check what was taken and return its ticket. No round trip.

    Raises:
        MessageError: the ticket is refused (`Signer.open_ticket`), or the job's plain fields were altered.
    """
    ticket = signer.open_ticket(taken.job_id, taken.payload, pool=pool)
    if (ticket.submission_id, ticket.number, ticket.vram_bytes) != (
        taken.submission_id,
        taken.number,
        taken.vram_bytes,
    ):
        raise MessageError(f"job {taken.job_id} was altered: its fields differ from its signed ticket")
    return ticket


@talks_to_redis
def put_back(
    connection: redis.Redis,
    pool: str,
    job_id: str,
    lease_id: str,
    *,
    front: bool = True,
    refused_by: str | None = None,
) -> bool:
    """Undo a take: the job is in the list again, and nobody holds it.

    Round trips: 1. Once only: False when this lease does not hold the job any more.

    Args:
        connection: Redis.
        pool: The pool's name.
        job_id: The job.
        lease_id: The lease it was taken with.
        front: At the head of the list, where it was.
        refused_by: The worker's name when it can never run it; it is then not offered to that worker again.
    """
    return _give_up(connection, pool, job_id, lease_id, "front" if front else "back", refused_by or "")


@talks_to_redis
def discard(connection: redis.Redis, pool: str, job_id: str, lease_id: str) -> bool:
    """Throw away a job that was taken: its trial has ended or is claimed by another, or it cannot be read.

    Round trips: 1. Once only: False when this lease does not hold the job any more.
    """
    return _give_up(connection, pool, job_id, lease_id, "discard", "")


def _give_up(connection: redis.Redis, pool: str, job_id: str, lease_id: str, where: str, refused_by: str) -> bool:
    names = Names(pool)
    keys = [
        names.waiting,
        names.intermediate,
        names.job(job_id),
        names.live(job_id),
        names.answer_prefix + lease_id,
    ]
    args = [job_id, lease_id, where, refused_by, names.events, hint("put_back")]
    return bool(run_script(connection, "give_up", keys, args))
