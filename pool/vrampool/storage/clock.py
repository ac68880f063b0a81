"""The database's clock: by it hosts whose own clocks differ agree on when a submission began, and when it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import sqlalchemy as sa

from vrampool.storage.database import PoolDatabase

#: Two clocks drift apart slowly; a clock that is set jumps.
COMPARED_S = 30.0


class StorageClock:
    """Seconds since the epoch as the database counts them. SQLite has no clock but its host's.

    Args:
        database: The pool's database.
        monotonic: Seconds between two comparisons.
    """

    def __init__(self, database: PoolDatabase, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        self._ahead_s = 0.0  # of the monotonic clock
        self._compared_at_s = -math.inf

    def now_s(self) -> float:
        """Return the time. Asks the database at most every half minute; raises as every read of it does."""
        if self._database.engine.dialect.name == "sqlite":
            return time.time()
        now_s = self._monotonic()
        if now_s - self._compared_at_s > COMPARED_S:
            with self._database.snapshot() as session:
                found = session.scalar(sa.select(sa.extract("epoch", sa.func.clock_timestamp())))
            now_s = self._monotonic()
            self._ahead_s, self._compared_at_s = float(found or 0) - now_s, now_s
        return now_s + self._ahead_s
