"""Workers with a card of 24 GiB each, as far as the queue knows them: they beat and ask, and run nothing."""

from __future__ import annotations

import dataclasses
import itertools

from support.valkey import SIGNER

from vrampool.queueing import (
    Answer,
    JobQueue,
    Offer,
    Registry,
    RunningTrial,
    WorkerRecord,
    ask,
)
from vrampool.queueing.names import Names

GIB = 1024**3
LIMIT_S = 120
_serial = itertools.count()


class Crowd:
    """Workers with a card of 24 GiB each, as far as the queue knows them."""

    def __init__(self, connection, pool) -> None:
        self.connection = connection
        self.pool = pool
        self.names = Names(pool)
        self.queue = JobQueue(connection, pool, SIGNER)
        self.registry = Registry(connection, pool)
        self.free_bytes: dict[str, int] = {}
        self.heard: dict[str, str] = {}

    def worker(self, name: str, free_gib: float, *, trials: int = 1, **changes) -> None:
        """Let a worker beat: so much is free of its card, the rest is held by its trials."""
        free_bytes = int(free_gib * GIB)
        self.free_bytes[name] = free_bytes
        lease = RunningTrial("digits", 0, (24 * GIB - free_bytes) // max(trials, 1), None, 0.0)
        record = WorkerRecord(
            name=name,
            host="hub",
            pid=1,
            device_id=f"GPU-{name}",
            device_name=f"GPU {name[1:]} (H200)",
            device_kind="cuda",
            total_bytes=24 * GIB,
            budget_bytes=24 * GIB,
            free_bytes=free_bytes,
            slots=16,
            state="ready",
            running=(lease,) * trials if free_bytes < 24 * GIB else (),
            most_bytes=24 * GIB,
        )
        self.registry.beat(dataclasses.replace(record, **changes), 600)

    def asks(self, name: str, **changes) -> Answer:
        """Have a worker ask as the loop does, with what it has heard before."""
        free_bytes = self.free_bytes[name]
        values = {
            "worker": name,
            "lease_id": f"L{next(_serial)}",
            "free_bytes": free_bytes,
            "idle": free_bytes == 24 * GIB,
            "ttl_ms": 600_000,
            "device_id": f"GPU-{name}",
            "device_kind": "cuda",
            "most_bytes": 24 * GIB,
            "earmark": self.heard.get(name, ""),
            "age_limit_ms": LIMIT_S * 1000,
        }
        answer = ask(self.connection, self.pool, Offer(**{**values, **changes}))
        self.heard[name] = answer.earmark.job_id if answer.earmark else ""
        return answer

    def pass_time(self, seconds: float) -> None:
        """Let time pass for all jobs: what Redis wrote down is that much longer ago."""
        for job_id in self.connection.lrange(self.names.waiting, 0, -1):
            key = self.names.job(job_id.decode())
            for field in ("queued_at_ms", "passed_ms"):
                if self.connection.hexists(key, field):
                    self.connection.hincrby(key, field, -int(seconds * 1000))

    @property
    def earmarks(self) -> dict[str, int]:
        """The number of the trial that each worker's device is kept free for."""
        jobs = {item.earmarked_by: item.number for item in self.queue.waiting() if item.earmarked_by}
        assert len(jobs) == self.connection.hlen(self.names.earmarks)
        return jobs

    def pass_over(self, *names: str) -> None:
        """Have workers pass over what they cannot take, and the age limit go by."""
        for name in names:
            assert self.asks(name).taken is None
        self.pass_time(LIMIT_S + 1)
