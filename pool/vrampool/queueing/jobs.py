"""One trial as an RQ job: the hash that RQ's tools read, with our plain fields that Lua can read beside them."""

from __future__ import annotations

import zlib
from typing import Any

import redis
from rq.job import Job, JobStatus
from rq.utils import now

from vrampool.errors import MessageError
from vrampool.messages import ENTRY_POINT, Ticket
from vrampool.queueing.scripts import Word
from vrampool.signing import PURPOSE_JOB, Signer, job_id_of

#: RQ keeps ended jobs for people to look at; the truth is in the storage.
KEPT_S = 500
#: `vram_bytes` of an exclusive request in the job's hash, where there is no null.
EXCLUSIVE = -1
#: A ticket is some hundred bytes; what unpacks to more was not written by us.
PAYLOAD_LIMIT_BYTES = 64 * 1024


class SignedSerializer:
    """RQ's serializer for our jobs: signed JSON. With it ``Job.fetch`` and RQ's workers unpickle nothing."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self.__qualname__ = type(self).__qualname__  # RQ's workers ask a serializer for its name, as if it were a class

    def dumps(self, value: Any) -> bytes:
        return self._signer.sign_json(PURPOSE_JOB, value)

    def loads(self, data: bytes) -> Any:
        return self._signer.open_json(PURPOSE_JOB, bytes(data))


def make_job(connection: redis.Redis, signer: Signer, ticket: Ticket) -> Job:
    """Return the RQ job of a ticket, not saved yet. It never times out in RQ and never expires while it waits."""
    job_id = job_id_of(ticket.submission_id, ticket.number)
    job = Job.create(
        ENTRY_POINT,
        id=job_id,
        connection=connection,
        origin=ticket.pool,
        description=f"{ticket.study_name}/{ticket.number}",
        timeout=-1,
        result_ttl=KEPT_S,
        failure_ttl=KEPT_S,
        status=JobStatus.QUEUED,
        serializer=SignedSerializer(signer),
    )
    job.data = signer.sign_ticket(job_id, ticket)
    job.enqueued_at = now()
    return job


def hash_of(job: Job, extra: dict[str, Word]) -> list[Word]:
    """Return all fields of the job's hash and the extra ones, flat: field, value, field, value."""
    words: list[Word] = []
    for field, value in {**job.to_dict(), **extra}.items():
        if value is not None:
            words += [field, value]
    return words


def payload_of(data: bytes) -> bytes:
    """Return the signed payload in a job's `data`, which RQ compresses.

    Raises:
        MessageError: it unpacks to more than any ticket needs.
    """
    unpacker = zlib.decompressobj()
    try:
        payload = unpacker.decompress(data, PAYLOAD_LIMIT_BYTES)
    except zlib.error:
        return data  # not compressed, or not ours: the signature decides
    if unpacker.unconsumed_tail:
        raise MessageError(f"the payload of a job unpacks to more than {PAYLOAD_LIMIT_BYTES} bytes")
    return payload
