"""How many trials there are to run, where an autoscaler can read it: the length of a plain Redis list.

The queue's own length would not do. Its trials are asked for only when a device can start them, so it is empty while
no worker is there, and trials that run are in it no more: a scaler would never start the first worker, and would
take away workers that are busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import redis

from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.names import Names

#: It ends when no coordinator has led for so long, and with it the wish for workers.
LIFE_S = 3_600
_AGAIN_S = 300.0


class Demand:
    """The list ``vrampool:<pool>:demand``: as many elements as trials wait, run or could run at once.

    KEDA's trigger `redis` reads its length (`listName`). Only the leading coordinator writes it.
    """

    #: The list is never longer: no pool has more trials at once.
    MOST = 1_000

    def __init__(self, connection: redis.Redis, pool: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = connection
        self._key = Names(pool).demand
        self._clock = clock
        self._told = -1
        self._told_at_s = 0.0

    def forget(self) -> None:
        """Tell again with the next call: another coordinator may have written in between."""
        self._told = -1

    @talks_to_redis
    def tell(self, trials: int) -> None:
        """Write how many trials there are to run. Round trips: 1 when that is news, else 0; 2 when somebody cut in.

        Only what the list lacks, or has too much, is sent: it changes with every trial, and may be a thousand long.
        """
        length = max(0, min(trials, self.MOST))
        now_s = self._clock()
        if length == self._told and now_s - self._told_at_s < _AGAIN_S:
            return
        if self._told < 1 or not length or not self._change(self._told, length):
            self._write(length)
        self._told, self._told_at_s = length, now_s

    def _change(self, before: int, length: int) -> bool:
        """Make the list longer or shorter; False: it was not as long as it was left, so it must be written whole."""
        less = max(0, before - length) + 1
        with self._connection.pipeline() as pipeline:
            pipeline.lrem(self._key, less, "trial")
            pipeline.rpush(self._key, *["trial"] * (length - before + less))  # its answer is the length
            pipeline.expire(self._key, LIFE_S)
            return bool(pipeline.execute()[1] == length)

    def _write(self, length: int) -> None:
        with self._connection.pipeline() as pipeline:
            pipeline.delete(self._key)
            if length:
                pipeline.rpush(self._key, *["trial"] * length)
                pipeline.expire(self._key, LIFE_S)
            pipeline.execute()
