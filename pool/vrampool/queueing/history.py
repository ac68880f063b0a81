"""Rings of what was measured: samples of each device, and what came back when a trial's process was gone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import redis

from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.names import Names

#: Half an hour at two samples a second.
SAMPLES_KEPT = 3_600
RELEASES_KEPT = 10_000
#: A ring nobody writes to ends by itself.
KEPT_S = 7 * 24 * 3600


@dataclass(frozen=True)
class ReleaseSummary:
    """What the last trials of a device left behind: the proof that its memory comes back. Bytes, seconds."""

    count: int  #: of trials whose end was watched
    last_back_s: float  #: from the end of the last one's processes until its memory was seen back, or given up
    most_back_s: float
    last_residue_bytes: int | None  #: None: the device does not tell its memory
    most_residue_bytes: int | None
    left_behind: int  #: trials of which something stayed in use


#: What an NVIDIA driver rounds and frees late is no residue.
NOISE_BYTES = 64 * 1024**2


def summarise(releases: Iterable[Mapping[str, Any]]) -> dict[str, ReleaseSummary]:
    """Sum up releases, oldest first, by device."""
    by_device: dict[str, list[Mapping[str, Any]]] = {}
    for release in releases:
        by_device.setdefault(str(release["device_id"]), []).append(release)
    found = {}
    for device_id, items in by_device.items():
        residues = [int(item["residue_bytes"]) for item in items if item.get("residue_bytes") is not None]
        found[device_id] = ReleaseSummary(
            count=len(items),
            last_back_s=float(items[-1]["back_s"]),
            most_back_s=max(float(item["back_s"]) for item in items),
            last_residue_bytes=items[-1].get("residue_bytes"),
            most_residue_bytes=max(residues, default=None),
            left_behind=sum(size > NOISE_BYTES for size in residues),
        )
    return found


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
