"""The waiting trials of a pool, from the side of the coordinator and of clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from vrampool.errors import StaleLeaderError
from vrampool.messages import Ticket
from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.events import ENQUEUED, hint
from vrampool.queueing.jobs import EXCLUSIVE, hash_of, make_job
from vrampool.queueing.names import Names
from vrampool.queueing.scripts import Word, run_script
from vrampool.signing import Signer, job_id_of

#: Jobs per call: a script must not hold up the beats of all workers.
_BATCH = 256
#: Seconds for which a device is avoided. It ends, or a pool with that one device would wait for ever.
AVOID_S = 30.0


@dataclass(frozen=True)
class WaitingJob:
    """A trial that waits for a worker."""

    job_id: str
    submission_id: str
    number: int
    vram_bytes: int | None  #: None: exclusive
    queued_at: float  #: seconds since the epoch, by Redis's clock; kept when the trial is enqueued again
    requires: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()  #: devices it avoids until `avoid_until`
    avoid_until: float = 0.0
    refused_by: tuple[str, ...] = ()  #: workers that gave it back for good
    beyond_bytes: int = 0  #: exclusive: it goes only to a device that can give more than this
    study: str = ""  #: its study's name; not signed, for people only
    waits_s: float = 0.0  #: since `queued_at`, when this was read
    passed_over_s: float | None = None  #: since a device that could hold it had no room; None: none had to pass it over
    earmarked_by: str = ""  #: the worker whose device is kept free for it


class JobQueue:
    """The list of waiting trials. RQ's queue of the pool's name; its order is the order of taking.

    Args:
        connection: Redis.
        pool: The pool's name.
        signer: Signs the tickets.
    """

    def __init__(self, connection: redis.Redis, pool: str, signer: Signer) -> None:
        self._connection = connection
        self._names = Names(pool)
        self._signer = signer
        self._epoch: int | None = None

    @staticmethod
    def job_id(submission_id: str, number: int) -> str:
        """Return the id of a trial's job."""
        return job_id_of(submission_id, number)

    def lead(self, epoch: int | None) -> None:
        """Enqueue from now on as the leader with this epoch (`Leadership.acquire`); None: for a pool without one."""
        self._epoch = epoch

    @talks_to_redis
    def enqueue(
        self,
        tickets: Sequence[Ticket],
        *,
        requires: str = "",
        avoid: str = "",
        avoid_s: float = AVOID_S,
        beyond_bytes: int = 0,
        front: bool = False,
        waited_s: float = 0.0,
        priority: int = 0,
        workers: Sequence[str] | None = None,
    ) -> list[str]:
        """Put trials into the list, in their order. One that waits already, or that a worker holds, stays as it is.

        They go ahead of all with a lower priority.

        Round trips: 1 for each 256 tickets.

        Args:
            tickets: The trials.
            requires: Capabilities that a worker must have, with commas.
            avoid: Ids of devices that shall not take them for `avoid_s` seconds, with commas.
            avoid_s: How long; 0 for not at all.
            beyond_bytes: Exclusive trials go only to a device that can give more than this.
            front: Ahead of all that wait with the same priority, for retries.
            waited_s: For so long no device had room for them before they were made; it counts for the age limit.
            priority: Of their submission.
            workers: Names of those who are called to take them; None: all are. The others come by every 2 s anyway.

        Returns:
            The ids of jobs that were not in the list before.

        Raises:
            StaleLeaderError: another coordinator leads, or this one's leadership ran out. Nothing was enqueued.
            TransientRedisError: Redis is away; whether all were enqueued is not known, and calling again is right.
        """
        batches = [tickets[start : start + _BATCH] for start in range(0, len(tickets), _BATCH)]
        put: list[str] = []
        for batch in reversed(batches) if front else batches:
            put += self._enqueue(batch, requires, avoid, avoid_s, front, waited_s, priority, beyond_bytes, workers)
        return put

    def _enqueue(
        self,
        tickets: Sequence[Ticket],
        requires: str,
        avoid: str,
        avoid_s: float,
        front: bool,
        waited_s: float,
        priority: int,
        beyond_bytes: int,
        workers: Sequence[str] | None,
    ) -> list[str]:
        names = self._names
        args: list[Word] = [
            "" if self._epoch is None else self._epoch,
            "front" if front else "back",
            "\n".join([names.events] if workers is None else map(names.calls, workers)),
            hint(ENQUEUED),
            names.job_prefix,
            names.live_prefix,
            names.executions_prefix,
            names.execution_prefix,
            names.results_prefix,
            len(tickets),
        ]
        for ticket in tickets:
            if ticket.pool != names.pool:
                raise ValueError(f"a ticket of the pool {ticket.pool!r} in the queue of {names.pool!r}")
            extra: dict[str, Word] = {
                "vram_bytes": EXCLUSIVE if ticket.vram_bytes is None else ticket.vram_bytes,
                "submission": ticket.submission_id,
                "number": ticket.number,
                "requires": requires,
                "avoid": avoid,
                "beyond_bytes": beyond_bytes,
                "avoid_ms": int(avoid_s * 1000) if avoid else 0,
                "waited_ms": int(waited_s * 1000),
                "priority": priority,
            }
            words = hash_of(make_job(self._connection, self._signer, ticket), extra)
            args += [job_id_of(ticket.submission_id, ticket.number), len(words), *words]
        keys = [
            names.waiting,
            names.intermediate,
            names.leader,
            names.queues,
            names.started,
            names.finished,
            names.failed,
        ]
        answer = run_script(self._connection, "enqueue", keys, args)
        if answer == -1:
            raise StaleLeaderError(f"epoch {self._epoch} does not lead the pool {names.pool}: acquire it again")
        return [job_id.decode() for job_id in answer]

    @talks_to_redis
    def call(self, workers: Sequence[str]) -> None:
        """Call workers, by name, to what waits already. Round trips: 1."""
        with self._connection.pipeline(transaction=False) as pipeline:
            for worker in workers:
                pipeline.publish(self._names.calls(worker), hint(ENQUEUED))
            pipeline.execute(raise_on_error=False)  # a hint that got lost is no failure

    @talks_to_redis
    def cancel(self, job_ids: Iterable[str]) -> list[str]:
        """Remove jobs that nobody has taken, and whatever is left of those whose worker is gone.

        Round trips: 1. A job that a live worker holds stays: the storage decides about its trial.

        Returns:
            The ids of those that were still in the list.
        """
        ids = list(job_ids)
        if not ids:
            return []
        names = self._names
        prefixes = [
            names.job_prefix,
            names.live_prefix,
            names.executions_prefix,
            names.execution_prefix,
            names.results_prefix,
        ]
        keys = [names.waiting, names.intermediate, names.started]
        removed = run_script(self._connection, "cancel", keys, [*prefixes, names.pool, *ids])
        return [job_id.decode() for job_id in removed]

    @talks_to_redis
    def waiting(self) -> list[WaitingJob]:
        """Return what waits, in order. Round trips: 2."""
        listed: Any = self._connection.lrange(self._names.waiting, 0, -1)
        ids = [job_id.decode(errors="replace") for job_id in listed]
        with self._connection.pipeline(transaction=False) as pipeline:
            pipeline.time()
            pipeline.hgetall(self._names.earmarks)
            for job_id in ids:
                pipeline.hmget(self._names.job(job_id), _WAITING_FIELDS)
            clock, earmarks, *rows = _raise_first(pipeline.execute(raise_on_error=False), 2)
        seconds, micros = clock
        now = seconds + micros / 1e6
        marked = {value.decode().partition(" ")[2]: worker.decode() for worker, value in earmarks.items()}
        jobs = [_waiting_job(job_id, row, now, marked.get(job_id, "")) for job_id, row in zip(ids, rows, strict=True)]
        return [job for job in jobs if job is not None]

    @talks_to_redis
    def known(self, job_ids: Iterable[str]) -> set[str]:
        """Return which of these trials wait in the list, whole, or are held by a live worker. Round trips: 1.

        The others must be enqueued again: Redis lost them, or the worker that took them is gone.
        """
        ids = list(job_ids)
        names = self._names
        with self._connection.pipeline(transaction=True) as pipeline:  # one moment: a job must not slip through
            pipeline.lrange(names.waiting, 0, -1)
            for job_id in ids:
                pipeline.hexists(names.job(job_id), "data")
                pipeline.exists(names.live(job_id))
            listed, *rest = _raise_first(pipeline.execute(raise_on_error=False), 1)
        in_list = {job_id.decode(errors="replace") for job_id in listed}
        wholes, lives = rest[::2], rest[1::2]
        return {
            job_id
            for job_id, whole, live in zip(ids, wholes, lives, strict=True)
            if live or (whole is True and job_id in in_list)  # an error: what lies there is no hash
        }


_WAITING_FIELDS = ["submission", "number", "vram_bytes", "queued_at_ms", "requires", "avoid", "avoid_ms", "refused_by"]
_WAITING_FIELDS += ["description", "passed_ms", "beyond_bytes"]


def _raise_first(answers: list[Any], count: int) -> list[Any]:
    """Raise what the first answers say, if that is an error. Those after them are of one job each: it alone is bad."""
    for answer in answers[:count]:
        if isinstance(answer, Exception):
            raise answer
    return answers


def _waiting_job(job_id: str, row: Sequence[bytes | None], now: float, earmarked_by: str) -> WaitingJob | None:
    """Return a job of the list; None for one that is gone, or that nobody can read: it was not written by us."""
    try:
        return None if row[0] is None else _read_waiting(job_id, row, now, earmarked_by)
    except (ValueError, TypeError):
        return None


def _read_waiting(job_id: str, row: Sequence[bytes | None], now: float, earmarked_by: str) -> WaitingJob:
    texts = [value.decode(errors="replace") if value is not None else "" for value in row]
    submission, number, vram_bytes, queued_at_ms, requires, avoid, avoid_ms, refused_by, *rest = texts
    description, passed_ms, beyond_bytes = rest
    queued_at = int(queued_at_ms or 0) / 1000
    return WaitingJob(
        job_id=job_id,
        submission_id=submission,
        number=int(number or -1),
        vram_bytes=None if int(vram_bytes or EXCLUSIVE) == EXCLUSIVE else int(vram_bytes),
        queued_at=queued_at,
        requires=_words(requires),
        avoid=_words(avoid),
        avoid_until=(int(queued_at_ms or 0) + int(avoid_ms or 0)) / 1000,
        refused_by=_words(refused_by),
        beyond_bytes=int(beyond_bytes or 0),
        study=description.rpartition("/")[0],
        waits_s=max(0.0, now - queued_at),
        passed_over_s=max(0.0, now - int(passed_ms) / 1000) if passed_ms else None,
        earmarked_by=earmarked_by,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)
