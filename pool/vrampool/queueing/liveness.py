"""Liveness leases: a key for each trial in a worker's hands that ends by itself when the worker does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import redis
from rq.utils import as_text

from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.names import Names
from vrampool.queueing.scripts import Word, run_script


class Liveness:
    """Says which trials a live worker holds. It knows no bytes: those are the worker's ledger's matter."""

    def __init__(self, connection: redis.Redis, pool: str) -> None:
        self._connection = connection
        self._names = Names(pool)

    @talks_to_redis
    def renew(self, held: Mapping[str, str], ttl_ms: int) -> list[str]:
        """Renew the leases of trials, and write those anew that Redis lost.

        Round trips: 1.

        Args:
            held: Name of the worker by job id.
            ttl_ms: How long they live without the next renewal.

        Returns:
            Job ids that another worker holds: this one was silent for too long, and lost them.
        """
        jobs = list(held)
        if not jobs:
            return []
        keys = [key for job_id in jobs for key in (self._names.live(job_id), self._names.first_seen_prefix + job_id)]
        args: list[Word] = [ttl_ms, *held.values()]
        return [jobs[position - 1] for position in run_script(self._connection, "renew", keys, args)]

    @talks_to_redis
    def release(self, job_id: str, worker: str) -> bool:
        """Delete a lease if that worker has it; `finish`, `give_back` and `put_back` do it anyway. Round trips: 1."""
        return bool(run_script(self._connection, "own", [self._names.live(job_id)], [worker, ""]))

    @talks_to_redis
    def alive(self, job_ids: Iterable[str]) -> dict[str, bool]:
        """Say for each job whether a live worker holds it. Round trips: 1."""
        return {job_id: worker is not None for job_id, worker in self.holders(job_ids).items()}

    @talks_to_redis
    def holders(self, job_ids: Iterable[str]) -> dict[str, str | None]:
        """Return the name of the worker that holds each job, or None. Round trips: 1."""
        ids = list(job_ids)
        if not ids:
            return {}
        values = self._connection.mget([self._names.live(job_id) for job_id in ids])
        return {job_id: as_text(value) if value else None for job_id, value in zip(ids, values, strict=True)}

    @talks_to_redis
    def server(self) -> tuple[str, float]:
        """Return the server's run id and uptime in seconds; by them one sees that it was away. Round trips: 1."""
        found = self._connection.info("server")
        return str(found["run_id"]), float(found["uptime_in_seconds"])
