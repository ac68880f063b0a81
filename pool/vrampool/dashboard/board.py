"""What the page shows now: one state for all who look, brought up to date by the poller, told in JSON messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vrampool.dashboard import curves
from vrampool.dashboard.cards import card, key_of, own_samples, residues
from vrampool.dashboard.curves import Curve, Row
from vrampool.dashboard.memories import Memories
from vrampool.dashboard.source import Source
from vrampool.dashboard.studies import study_view
from vrampool.dashboard.tallies import Tally, total_of
from vrampool.dashboard.waits import next_rows, waiting_rows
from vrampool.queueing import WorkerRecord

#: A device whose worker fell silent stays on the page for so long.
GONE_SHOWN_S = 600.0
#: Releases change slowly, and there may be thousands.
RELEASES_S = 10.0
#: A device is sampled every few seconds at the least: where the newest sample of all is older, clocks differ.
_SURELY_OLD_S = 8.0
#: The ring reaches back half an hour; its first reading takes all of it.
_ALL = 0.0


@dataclass
class _Seen:
    """A device as it was last heard of."""

    worker: WorkerRecord
    heard_at: float
    newest: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Figures:
    """What Prometheus reads, at one moment."""

    workers: tuple[WorkerRecord, ...]
    samples: dict[str, Mapping[str, Any]]  #: newest by the worker's name
    waiting: int
    whole: Tally  #: of all studies
    studies: tuple[dict[str, Any], ...]
    residue_bytes: dict[str, int]  #: by device
    redis_fault: str | None
    storage_fault: str | None


class Board:
    """The state of the page. Its two `look_` methods block and are called by the poller's threads.

    Args:
        source: Where the data come from.
        clock: Seconds since the epoch.
    """

    def __init__(self, source: Source, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}
        self._curves: dict[str, Curve] = {}
        self._read_until: dict[str, float] = {}
        self._workers: list[WorkerRecord] = []
        self._waiting: list[dict[str, Any]] = []
        self._next: list[dict[str, Any]] = []
        self._studies: dict[str, dict[str, Any]] = {}
        self._tallies: dict[str, Tally] = {}
        self._memories: dict[str, Memories] = {}  #: only the studies' thread uses them
        self._submissions: dict[str, str] = {}
        self._residues: dict[str, int] = {}
        self._releases_at = 0.0
        self._ahead_s = 0.0  #: of our clock, before Redis's
        self._redis_fault: str | None = None
        self._storage_fault: str | None = None

    # ---- bringing it up to date ----------------------------------------------------------------------

    def look_at_devices(self) -> dict[str, Any]:
        """Read devices, waiting trials and new samples; return the message for all who look."""
        workers, waiting = self._source.workers(), self._source.waiting()
        fresh = self._fresh_samples(workers)
        now = self._now()
        if now - self._releases_at > RELEASES_S:
            releases = self._source.releases()
            with self._lock:
                self._residues, self._releases_at = residues(releases, now), now
        rows: dict[str, Any] = {}
        for worker in workers:  # each for itself: half an hour of samples takes a moment, and others want to read
            with self._lock:
                key = key_of(worker, workers)
                added = self._take_in(key, worker, own_samples(fresh[worker.device_id], worker, workers), now)
                if added:
                    rows[key] = curves.message(added)
        with self._lock:
            self._redis_fault = None
            self._workers = workers
            self._waiting = waiting_rows(waiting, workers, self._submissions)
            self._next = next_rows(self._studies.values(), workers, now)
            self._forget_gone(now)
            return {**self._devices(now), "rows": rows}

    def _take_in(self, key: str, worker: WorkerRecord, samples: list[Mapping[str, Any]], now: float) -> list[Row]:
        """Take in what is new of a device; return it as rows."""
        seen = self._seen.setdefault(key, _Seen(worker, now))
        seen.worker, seen.heard_at = worker, now
        curve = self._curves.get(key)
        if curve is None:
            curve = self._curves[key] = Curve()
            for sample in curves.thinned(samples):
                curve.add(sample)
            seen.newest = samples[-1] if samples else None
            return []  # whoever comes asks for the whole curve
        added = []
        for sample in samples:
            row = curve.add(sample)
            if row is not None:
                added.append(row)
                seen.newest = sample
        return added

    def _fresh_samples(self, workers: Sequence[WorkerRecord]) -> dict[str, list[dict[str, Any]]]:
        fresh = {}
        for device_id in {worker.device_id for worker in workers}:
            since = self._read_until.get(device_id, _ALL)
            found = self._source.samples(device_id, since + 0.001 if since else _ALL)
            if found:
                self._read_until[device_id] = found[-1]["at"]
            fresh[device_id] = found
        ages_s = [self._clock() - found[-1]["at"] for found in fresh.values() if found]
        if ages_s:
            self._ahead_s = min(ages_s) if not -1.0 <= min(ages_s) <= _SURELY_OLD_S else 0.0
        return fresh

    def _now(self) -> float:
        """Return the time by Redis's clock, as far as it can be told: samples and queue carry that one's time."""
        return self._clock() - self._ahead_s

    def _forget_gone(self, now: float) -> None:
        for key in [key for key, seen in self._seen.items() if now - seen.heard_at > GONE_SHOWN_S]:
            del self._seen[key]
            self._curves.pop(key, None)

    def look_at_studies(self) -> dict[str, Any] | None:
        """Read the studies; return the message with those that changed, or None when none did."""
        readings = self._source.studies()
        views = {}
        for reading in readings:
            with self._lock:  # others sum it up
                tally = self._tallies.setdefault(reading.name, Tally())
                tally.add(reading.trials)
            views[reading.name] = study_view(reading, tally, self._memories.setdefault(reading.name, Memories()))
        with self._lock:
            self._storage_fault = None
            self._submissions = {item.row.id: reading.name for reading in readings for item in reading.submissions}
            changed = [view for name, view in views.items() if self._studies.get(name) != view]
            if not changed and list(views) == list(self._studies):
                return None
            self._studies = views
            self._memories = {name: kept for name, kept in self._memories.items() if name in views}
            return {"studies": changed, "order": list(views), "totals": self._totals()}

    def redis_away(self, text: str) -> dict[str, Any]:
        """Note that Redis does not answer; return the message."""
        with self._lock:
            self._redis_fault = text
            return self._devices(self._now())

    def storage_away(self, text: str) -> dict[str, Any]:
        """Note that the storage does not answer; return the message."""
        with self._lock:
            self._storage_fault = text
            return self._devices(self._now())

    # ---- telling -------------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """Return the message for somebody who has just come: everything but the curves."""
        with self._lock:
            return {
                **self._devices(self._now()),
                "pool": self._source.pool,
                "studies": list(self._studies.values()),
                "order": list(self._studies),
            }

    def history(self, key: str, window_s: int) -> dict[str, Any] | None:
        """Return a device's curve over a window; None: there is no such device, or no such window."""
        with self._lock:
            curve = self._curves.get(key)
            if curve is None or window_s not in curves.WINDOWS:
                return None
            return {"step": curves.WINDOWS[window_s], **curves.message(curve.rows(window_s))}

    def figures(self) -> Figures:
        """Return what Prometheus reads."""
        with self._lock:
            newest = {seen.worker.name: seen.newest for seen in self._seen.values() if seen.newest is not None}
            return Figures(
                workers=tuple(self._workers),
                samples=newest,
                waiting=len(self._waiting),
                whole=total_of(list(self._tallies.values())),
                studies=tuple(self._studies.values()),
                residue_bytes=dict(self._residues),
                redis_fault=self._redis_fault,
                storage_fault=self._storage_fault,
            )

    def _devices(self, now: float) -> dict[str, Any]:
        live = {worker.name for worker in self._workers}
        cards = []
        for key, seen in sorted(self._seen.items(), key=lambda item: (item[1].worker.host, item[1].worker.device_name)):
            here = seen.worker.name in live
            if key == key_of(seen.worker, self._workers if here else [seen.worker, *self._workers]):
                gone_s = None if here else now - seen.heard_at
                cards.append(card(key, seen.worker, seen.newest, gone_s=gone_s))
        return {
            "now": round(now, 2),
            "devices": cards,
            "waiting": [*self._waiting, *self._next],
            "totals": self._totals(),
            "faults": [fault for fault in (self._redis_fault, self._storage_fault) if fault],
        }

    def _totals(self) -> dict[str, Any]:
        whole = total_of(list(self._tallies.values()))
        running = [item for worker in self._workers for item in worker.running]
        return {
            "running": len(running),
            "waiting": len(self._waiting),
            "devices": len(self._workers),
            "ready": sum(worker.state == "ready" for worker in self._workers),
            "budget_bytes": sum(worker.budget_bytes for worker in self._workers),
            "lease_bytes": sum(item.lease_bytes for item in running),
            "measured_bytes": sum(item.measured_bytes or 0 for item in running),
            "finished": sum(whole.states.values()),
            "verdicts": dict(whole.verdicts),
            "retries": whole.retries,
            "start_s": round(whole.start_s / whole.started, 3) if whole.started else None,
            "start_share": round(whole.start_s / (whole.start_s + whole.run_s), 4) if whole.run_s else None,
            "residue_bytes": sum(self._residues.values()),
        }
