"""What the driver holds for a process beside torch's allocator, as workers have seen it: kept for workers to come."""

from __future__ import annotations

import redis

from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.names import Names

#: A combination of device, driver and torch that nobody has used for so long is forgotten with all others.
KEPT_S = 90 * 24 * 3600


class Overheads:
    """The overheads of a pool's kinds of devices. Only larger figures replace one: a cap must hold for every model."""

    def __init__(self, connection: redis.Redis, pool: str) -> None:
        self._connection = connection
        self._names = Names(pool)

    @staticmethod
    def key(device_name: str, driver: str, torch: str) -> str:
        """Return what the overhead depends on, as one word."""
        return "|".join((device_name, driver, torch))

    @talks_to_redis
    def read(self, key: str) -> int | None:
        """Return the largest overhead seen there, in bytes; None: nobody has seen one. Round trips: 1."""
        with self._connection.pipeline() as pipeline:
            pipeline.zscore(self._names.overheads, key)
            pipeline.expire(self._names.overheads, KEPT_S)
            found, _ = pipeline.execute()
        return None if found is None else int(found)

    @talks_to_redis
    def keep(self, key: str, overhead_bytes: int) -> None:
        """Keep an overhead, unless a larger one is known. Round trips: 1."""
        with self._connection.pipeline() as pipeline:
            pipeline.zadd(self._names.overheads, {key: overhead_bytes}, gt=True)
            pipeline.expire(self._names.overheads, KEPT_S)
            pipeline.execute()
