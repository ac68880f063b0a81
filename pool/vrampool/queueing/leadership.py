"""Which coordinator leads a pool: a lease with an epoch. The scripts that enqueue check the epoch."""

from __future__ import annotations

import uuid

import redis
from rq.utils import as_text

from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.names import Names
from vrampool.queueing.scripts import run_script

#: A leader that is silent for longer is followed by another.
TTL_S = 6.0


class Leadership:
    """One coordinator's hold on the leadership of its pool.

    Args:
        connection: Redis.
        pool: The pool's name.
        name: Of the coordinator, for people.
        ttl_s: How long it lasts without renewal.
    """

    def __init__(self, connection: redis.Redis, pool: str, name: str, *, ttl_s: float = TTL_S) -> None:
        self._connection = connection
        self._names = Names(pool)
        # A host gives its pids out again: the name alone could make a successor look like us.
        self._name = f"{name} {uuid.uuid4().hex[:12]}"
        self.ttl_s = ttl_s
        self.epoch: int | None = None  #: of our leadership; None: we do not lead, as far as we know

    @talks_to_redis
    def acquire(self) -> int | None:
        """Lead if nobody does; return the epoch, higher than any before, or None. Round trips: 1."""
        keys = [self._names.leader, self._names.epoch]
        epoch = run_script(self._connection, "lead", keys, [self._name, int(self.ttl_s * 1000)])
        self.epoch = int(epoch) if epoch else None
        return self.epoch

    @talks_to_redis
    def renew(self) -> bool:
        """Stay the leader. False: the leadership was lost; `acquire` may bring another epoch. Round trips: 1."""
        if self.epoch is None:
            return False
        if not run_script(self._connection, "own", [self._names.leader], [self._value(), int(self.ttl_s * 1000)]):
            self.epoch = None
        return self.epoch is not None

    @talks_to_redis
    def release(self) -> None:
        """Let another lead at once. Round trips: 1."""
        if self.epoch is not None:
            run_script(self._connection, "own", [self._names.leader], [self._value(), ""])
            self.epoch = None

    @talks_to_redis
    def leader(self) -> str | None:
        """Return the name of the coordinator that leads, or None. Round trips: 1."""
        value = self._connection.get(self._names.leader)
        return as_text(value).split(" ")[1] if value else None

    def _value(self) -> str:
        return f"{self.epoch} {self._name}"
