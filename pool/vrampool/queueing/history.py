"""Rings of what was measured: samples of each device, and what came back when a trial's process was gone."""

from __future__ import annotations

import json
from typing import Any

import redis

from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.names import Names

#: Half an hour at two samples a second.
SAMPLES_KEPT = 3_600
RELEASES_KEPT = 10_000
#: A ring nobody writes to ends by itself.
KEPT_S = 7 * 24 * 3600


class History:
    """Bounded: old entries leave, and a ring that is not written to for a week ends."""

    def __init__(self, connection: redis.Redis, pool: str) -> None:
        self._connection = connection
        self._names = Names(pool)

    @talks_to_redis
    def add_sample(self, device_id: str, sample: dict[str, Any]) -> None:
        """Add a sample of a device. Round trips: 1."""
        self._add(self._names.samples_prefix + device_id, sample, SAMPLES_KEPT)

    @talks_to_redis
    def add_release(self, release: dict[str, Any]) -> None:
        """Add what came back when a trial was gone: its job, study, device, bytes before and after. Round trips: 1."""
        self._add(self._names.releases, release, RELEASES_KEPT)

    @talks_to_redis
    def samples(self, device_id: str, since: float = 0.0, *, limit: int = SAMPLES_KEPT) -> list[dict[str, Any]]:
        """Return a device's samples from `since` on (seconds since the epoch, Redis's clock), oldest first.

        Each has the key ``at``, its time. Of more than `limit` the newest are returned. Round trips: 1.
        """
        return self._read(self._names.samples_prefix + device_id, since, limit)

    @talks_to_redis
    def releases(self, study: str | None = None, *, limit: int = RELEASES_KEPT) -> list[dict[str, Any]]:
        """Return the kept releases of one study or of all, oldest first, with their time ``at``. Round trips: 1."""
        found = self._read(self._names.releases, 0.0, limit)
        return [release for release in found if study is None or release.get("study") == study]

    def _add(self, key: str, value: dict[str, Any], kept: int) -> None:
        with self._connection.pipeline() as pipeline:
            pipeline.xadd(key, {"json": json.dumps(value, separators=(",", ":"))}, maxlen=kept, approximate=True)
            pipeline.expire(key, KEPT_S)
            pipeline.execute()

    def _read(self, key: str, since: float, limit: int) -> list[dict[str, Any]]:
        first = str(int(since * 1000)) if since > 0 else "-"
        entries: Any = self._connection.xrevrange(key, max="+", min=first, count=limit)
        return [
            {"at": int(entry.split(b"-")[0]) / 1000, **json.loads(fields[b"json"])} for entry, fields in entries[::-1]
        ]
