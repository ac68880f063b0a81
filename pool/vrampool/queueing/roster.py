"""The records of a pool's workers for one who looks again and again: only what changed is read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import redis

from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.names import Names
from vrampool.queueing.registry import WorkerRecord
from vrampool.queueing.scripts import run_script

#: All are read after so long: one whose record is to live for less time than was thought is seen then.
WHOLE_S = 2.0


class Roster:
    """What the workers of a pool last told.

    With 1 000 workers all records are most of a megabyte, and the coordinator looks with every trial. A worker's place
    in the sorted set says when its record ends, so with a known length of life also when it was written.

    Args:
        connection: Redis.
        pool: The pool's name.
        ttl_s: A record lives so long from when it was written.
        clock: Monotonic seconds.
    """

    def __init__(
        self, connection: redis.Redis, pool: str, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._names = Names(pool)
        self._ttl_ms = int(ttl_s * 1000)
        self._clock = clock
        self._bodies: dict[str, bytes] = {}  #: as written; b"" where there is none
        self._records: dict[str, WorkerRecord] = {}  #: of those that can be read, by name
        self._ends_from_ms: int | None = None  #: what is written from now on ends later; None: nothing was read yet
        self._whole_at_s = 0.0

    @talks_to_redis
    def workers(self) -> list[WorkerRecord]:
        """Return the records of live workers by name. Round trips: 1; 2 when one has gone."""
        due = self._clock() - self._whole_at_s > WHOLE_S
        if self._ends_from_ms is None or due or self._read(str(self._ends_from_ms)) != len(self._bodies):
            self._read_whole()
        return [self._records[name] for name in sorted(self._records)]

    def _read_whole(self) -> None:
        before, self._bodies = self._bodies, {}
        self._read("all", before)
        self._records = {name: self._records[name] for name in self._bodies if name in self._records}
        self._whole_at_s = self._clock()

    def _read(self, since: str, before: dict[str, bytes] | None = None) -> int:
        """Read records; return how many workers live."""
        known = self._bodies if before is None else before
        now_ms, live, *found = run_script(
            self._connection, "changed", [self._names.workers], [self._names.worker_prefix, since]
        )
        for raw, body in _pairs(found):
            name = raw.decode(errors="replace")
            if body != known.get(name):
                self._take_in(name, body)
            self._bodies[name] = body
        self._ends_from_ms = int(now_ms) + self._ttl_ms
        return int(live)

    def _take_in(self, name: str, body: bytes) -> None:
        try:
            self._records[name] = WorkerRecord.from_json(json.loads(body))
        except (ValueError, TypeError, AttributeError):  # gone, or written by a much older or newer version
            self._records.pop(name, None)


def _pairs(found: list[bytes | None]) -> Iterator[tuple[bytes, bytes]]:
    for position in range(0, len(found), 2):
        yield found[position] or b"", found[position + 1] or b""
