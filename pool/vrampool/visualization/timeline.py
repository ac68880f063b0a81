"""Samples and releases as kept by the pool -> the arrays a picture is drawn from. Pure; knows no matplotlib."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TrialKey = tuple[str, int]  # study name, trial number

#: Samples further apart than this many usual pauses, and than `_GAP_S`, leave a hole in the picture: the worker
#: was away, and what the device held then is not known.
_GAP_PAUSES = 6
_GAP_S = 5.0
#: Places tried for each label; more would only cost time.
_LABEL_TRIES = 15


@dataclass(frozen=True)
class Band:
    """One trial's part of the stack. Arrays have one value per sample; zero where the trial did not run."""

    key: TrialKey
    active: NDArray[np.bool_]
    bottom_bytes: Floats
    lease_bytes: Floats
    measured_bytes: Floats  #: NaN where the trial ran but its use was not known

    @property
    def top_bytes(self) -> Floats:
        """Upper edge: the lease, or the measured memory where that is more."""
        top: Floats = self.bottom_bytes + np.fmax(self.lease_bytes, self.measured_bytes)
        return top

    def runs(self) -> Iterator[slice]:
        """Yield the stretches of samples during which the trial was there without a break."""
        edges = np.flatnonzero(np.diff(np.concatenate(([False], self.active, [False]))))
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            yield slice(int(first), int(end))


@dataclass(frozen=True)
class TrialEnd:
    """Where a trial ended, and what of its memory stayed behind."""

    key: TrialKey
    at_s: float  #: seconds since the picture's start
    state: str  #: name of Optuna's state, in capitals
    residue_bytes: int | None
    back_s: float | None  #: from the end until its memory was seen back


@dataclass(frozen=True)
class DeviceTimeline:
    """One device over time. A sample holds from its time until the next one's: `edges_s` has one value more."""

    device_id: str
    device_name: str
    edges_s: Floats
    total_bytes: int
    budget_bytes: int
    driver_bytes: Floats
    strangers_bytes: Floats
    used_bytes: Floats  #: what the device itself says is in use, the driver's part in it; NaN where unknown
    bands: tuple[Band, ...]
    ends: tuple[TrialEnd, ...]

    @property
    def count(self) -> NDArray[np.int64]:
        """Number of trials running at each sample."""
        none = np.zeros(len(self.driver_bytes), dtype=np.int64)
        return sum((band.active.astype(np.int64) for band in self.bands), none)

    @property
    def measured_bytes(self) -> Floats:
        """Measured memory of everything at each sample: driver, strangers and trials."""
        trials = [np.nan_to_num(band.measured_bytes) for band in self.bands]
        total: Floats = np.sum([self.driver_bytes, self.strangers_bytes, *trials], axis=0)
        return total

    @property
    def interesting_top_bytes(self) -> float:
        """Height that must be seen: leases where trials share the device, measured memory where one has it alone.

        The lease of a trial that has the device to itself is the whole budget; it says nothing about trials.
        """
        tops = [np.where(self.count > 1, np.where(band.active, band.top_bytes, 0), 0) for band in self.bands]
        return float(np.nanmax(np.concatenate([self.measured_bytes, *tops])))

    def label_spots(self, band: Band, width_s: float, height_bytes: float) -> list[tuple[float, float]]:
        """Return the centres (seconds, bytes) of labels of the given size that fit into a band.

        There is one for each level at which the band lies: it drops when an older trial below it ends.
        """
        spots = []
        for level in _levels(band, height_bytes):
            left, right = float(self.edges_s[level.start]), float(self.edges_s[level.stop])
            if right - left < width_s:
                continue
            pause_s = (right - left - width_s) / (_LABEL_TRIES - 1)
            centres = [left + width_s / 2 + step * pause_s for step in range(_LABEL_TRIES)]
            rooms = [(*self._room(band, level, centre, width_s), centre) for centre in centres]
            fitting = [room for room in rooms if room[1] - room[0] >= height_bytes]
            if fitting:
                low, high, centre = min(fitting, key=lambda room: abs(room[2] - (left + right) / 2))
                spots.append((centre, (low + high) / 2))
        return spots

    def _room(self, band: Band, level: slice, centre_s: float, width_s: float) -> tuple[float, float]:
        """Return the lower and upper edge of what is free of a level over the width of a label."""
        first = int(np.searchsorted(self.edges_s, centre_s - width_s / 2, side="right")) - 1
        end = int(np.searchsorted(self.edges_s, centre_s + width_s / 2, side="left"))
        window = slice(max(first, level.start), min(max(end, first + 1), level.stop))
        return float(band.bottom_bytes[window].max()), float(band.top_bytes[window].min())


def _levels(band: Band, height_bytes: float) -> Iterator[slice]:
    """Split the runs of a band where its lower edge jumps by more than the height of a label."""
    for run in band.runs():
        jumps = np.flatnonzero(np.abs(np.diff(band.bottom_bytes[run])) > height_bytes) + 1 + run.start
        for first, end in pairwise([run.start, *jumps.tolist(), run.stop]):
            yield slice(first, end)


def read_timelines(
    samples: Iterable[Mapping[str, Any]], releases: Iterable[Mapping[str, Any]]
) -> tuple[DeviceTimeline, ...]:
    """Sort samples and releases by device; devices are in the order of their names and ids.

    Each host has a "cpu": those of several hosts are told apart by the host, and carry its name.
    """
    by_device: defaultdict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for sample in samples:
        by_device[_device_of(sample)].append(sample)
    ends: defaultdict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for release in releases:
        ends[_device_of(release)].append(release)
    if not by_device:
        return ()
    start_s = min(sample["at_s"] for group in by_device.values() for sample in group)
    hosts = Counter(device_id for device_id, _ in by_device)
    lines = []
    for (device_id, host), group in by_device.items():
        # Releases of before their host was kept name the device alone.
        line = _read_device(group, ends[device_id, host] or ends[device_id, ""], start_s)
        shared = hosts[device_id] > 1 and host
        lines.append(replace(line, device_name=f"{host}: {line.device_name}") if shared else line)
    return tuple(sorted(lines, key=lambda line: (line.device_name, line.device_id)))


def _device_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return a device's id and its host; a card's UUID names it alone, wherever its host has gone."""
    device_id = str(entry["device_id"])
    return device_id, "" if device_id.startswith(("GPU-", "MIG-")) else str(entry.get("host", ""))


def _read_device(samples: list[Mapping[str, Any]], releases: list[Mapping[str, Any]], start_s: float) -> DeviceTimeline:
    samples = sorted(samples, key=lambda sample: float(sample["at_s"]))
    rows, edges = _with_gaps(samples)
    last = samples[-1]
    driver = _column(rows, "driver_reserved_bytes", unknown=0)
    strangers = _column(rows, "strangers_bytes", unknown=0)
    return DeviceTimeline(
        device_id=last["device_id"],
        device_name=last["device_name"],
        edges_s=edges - start_s,
        total_bytes=int(last["total_bytes"]),
        budget_bytes=int(last["budget_bytes"]),
        driver_bytes=driver,
        strangers_bytes=strangers,
        used_bytes=_column(rows, "used_bytes", unknown=np.nan) + driver,
        bands=_stack(rows, driver + strangers),
        ends=tuple(sorted((_read_end(release, start_s) for release in releases), key=lambda end: end.at_s)),
    )


def _with_gaps(samples: list[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], Floats]:
    """Put an empty row where samples are missing; the edges are the rows' times and the end of the last one."""
    times = np.array([sample["at_s"] for sample in samples], dtype=np.float64)
    pauses = np.diff(times)
    usual_s = float(np.median(pauses)) if len(pauses) else 1.0
    rows: list[Mapping[str, Any]] = []
    edges: list[float] = []
    for index, sample in enumerate(samples):
        rows.append(sample)
        edges.append(float(times[index]))
        if index < len(pauses) and pauses[index] > max(_GAP_PAUSES * usual_s, _GAP_S):
            rows.append({})
            edges.append(float(times[index]) + usual_s)
    return rows, np.array([*edges, edges[-1] + usual_s])


def _column(rows: list[Mapping[str, Any]], name: str, *, unknown: float) -> Floats:
    values = [np.nan if not row else row.get(name) for row in rows]
    return np.array([unknown if value is None else value for value in values], dtype=np.float64)


def _stack(rows: list[Mapping[str, Any]], floor_bytes: Floats) -> tuple[Band, ...]:
    """Pile up the trials in the order in which they appeared, so that a band never jumps over an older one."""
    values: dict[TrialKey, tuple[Floats, Floats]] = {}
    for index, row in enumerate(rows):
        for trial in row.get("trials", ()):
            key = (str(trial["study"]), int(trial["number"]))
            lease, measured = values.setdefault(key, (np.zeros(len(rows)), np.zeros(len(rows))))
            lease[index] = trial["lease_bytes"] or 0
            measured[index] = np.nan if trial["measured_bytes"] is None else trial["measured_bytes"]
    bands: list[Band] = []
    bottom = floor_bytes
    for key, (lease, measured) in values.items():
        active = (lease > 0) | ~(measured <= 0)
        bands.append(Band(key, active, bottom, lease, measured))
        bottom = bands[-1].top_bytes
    return tuple(bands)


def _read_end(release: Mapping[str, Any], start_s: float) -> TrialEnd:
    return TrialEnd(
        key=(str(release["study"]), int(release["number"])),
        at_s=float(release["ended_at_s"]) - start_s,
        state=str(release["state"]).upper(),
        residue_bytes=release.get("residue_bytes"),
        back_s=release.get("back_s"),
    )
