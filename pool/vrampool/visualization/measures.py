"""From attempts to what each picture draws: placed boxes, points, rates, shares. Pure; knows no drawing library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vrampool.messages import EndKind
from vrampool.units import MIB, format_bytes
from vrampool.visualization.attempts import Attempt, StudyAttempts, is_choice

#: Less than this is no residue: drivers and allocators round by such amounts.
NOTABLE_RESIDUE_BYTES = 64 * MIB
_WINDOWS = 40


@dataclass(frozen=True)
class Box:
    """One attempt placed on its device: time goes right, memory goes up; no two boxes of a device overlap."""

    attempt: Attempt
    left_s: float
    right_s: float
    bottom_bytes: int
    height_bytes: int  #: its lease, or its peak where that was more
    peak_bytes: int
    cap_bytes: int | None  #: what its process was held to, the driver's overhead included; None: it was not


@dataclass(frozen=True)
class DeviceGantt:
    """The attempts of one device."""

    device: str
    name: str
    boxes: tuple[Box, ...]
    budget_bytes: int | None

    @property
    def top_bytes(self) -> int:
        return max((box.bottom_bytes + box.height_bytes for box in self.boxes), default=0)

    @property
    def residue_bytes(self) -> int | None:
        """The largest residue of any attempt; None: nobody knows."""
        return max((b.attempt.residue_bytes for b in self.boxes if b.attempt.residue_bytes is not None), default=None)

    @property
    def at_once(self) -> int:
        """The most attempts that ran at the same time."""
        marks = sorted([(box.left_s, 1) for box in self.boxes] + [(box.right_s, -1) for box in self.boxes])
        return int(max(np.cumsum([step for _, step in marks]), default=0))


def gantt(study: StudyAttempts) -> tuple[tuple[DeviceGantt, ...], float]:
    """Place every attempt that has ended on its device. Returns the devices, and the length of the picture in seconds.

    What runs, and what was lost with its worker, has told no facts yet: it is left out.
    """
    start_s = min(attempt.start_s for attempt in study.attempts)
    end_s = max(attempt.end_s for attempt in study.attempts)
    devices = []
    for device, name in study.devices:
        own = [a for a in study.attempts if a.device == device and a.facts is not None]
        own.sort(key=lambda attempt: (attempt.start_s, attempt.number))
        if not own:
            continue
        boxes: list[Box] = []
        for attempt in own:
            boxes.append(_place(attempt, boxes, start_s))
        budgets = [a.facts.budget_bytes for a in own if a.facts is not None and a.facts.budget_bytes]
        devices.append(DeviceGantt(device, name, tuple(boxes), budgets[-1] if budgets else None))
    return tuple(devices), max(end_s - start_s, 1e-3)


def _place(attempt: Attempt, placed: Sequence[Box], start_s: float) -> Box:
    """Put it as low as it fits beside those that ran at the same time."""
    left, right = attempt.start_s - start_s, attempt.end_s - start_s
    height = attempt.height_bytes
    bottom = 0
    for other in sorted(placed, key=lambda box: box.bottom_bytes):
        if other.right_s <= left or other.left_s >= right:
            continue
        if other.bottom_bytes >= bottom + height:
            break
        bottom = max(bottom, other.bottom_bytes + other.height_bytes)
    facts = attempt.facts
    cap = None if facts is None or facts.cap_bytes is None else facts.cap_bytes + (facts.overhead_bytes or 0)
    if cap is not None and cap > 1.5 * max(height, 1):  # of a device that it had to itself, before its lease shrank
        cap = None
    return Box(attempt, left, right, bottom, height, attempt.memory.peak_bytes or 0, cap)


def box_words(box: Box) -> str:
    """Return what is told of a box when it is pointed at."""
    facts, memory = box.attempt.facts, box.attempt.memory
    request = format_bytes(memory.request_bytes) if memory.request_bytes else "a whole device"
    words = [f"trial {box.attempt.number}: {box.attempt.how}", f"asked for {request}"]
    if facts is not None:
        words.append(f"leased {format_bytes(facts.lease_bytes)}")
        if facts.lease_at_end_bytes and facts.lease_at_end_bytes != facts.lease_bytes:
            words.append(f"{format_bytes(facts.lease_at_end_bytes)} at the end")
        words.append(f"peak {format_bytes(memory.peak_bytes)}")
    if box.attempt.residue_bytes is not None and box.attempt.residue_bytes >= NOTABLE_RESIDUE_BYTES:
        words.append(f"left {format_bytes(box.attempt.residue_bytes)} behind")
    words.append(f"ran {box.right_s - box.left_s:.1f} s")
    return ", ".join(words)


def params_by_influence(study: StudyAttempts) -> list[str]:
    """Return the names of the parameters, those that go with memory most strongly first.

    Numbers by their rank correlation with the peak, choices by the part of the peak's variation that lies between
    their groups. It orders panels; what a parameter does to memory is told by `vrampool explain`.
    """
    strengths: dict[str, float] = {}
    for name in study.distributions:
        rows = [a for a in study.measured if name in a.memory.params]
        values = [a.memory.params[name] for a in rows]
        if len(rows) < 3:
            strengths[name] = 0.0
            continue
        peaks = np.log([float(a.memory.peak_bytes or 1) for a in rows])
        if is_choice(study.distributions[name], values):
            strengths[name] = _between(values, peaks)
        else:
            strengths[name] = abs(_correlation(_ranks(np.array(values, float)), _ranks(peaks)))
    return sorted(strengths, key=lambda name: (-strengths[name], name))


def _between(values: Sequence[Any], peaks: Any) -> float:
    total = float(((peaks - peaks.mean()) ** 2).sum())
    groups: dict[str, list[float]] = {}
    for value, peak in zip(values, peaks, strict=True):
        groups.setdefault(str(value), []).append(float(peak))
    found = sum(len(group) * (np.mean(group) - peaks.mean()) ** 2 for group in groups.values())
    return math.sqrt(float(found) / total) if total > 0 else 0.0


def _ranks(values: Any) -> Any:
    """Return ranks, the mean one where values are equal."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _correlation(left: Any, right: Any) -> float:
    if np.ptp(left) == 0 or np.ptp(right) == 0:
        return 0.0
    return float(np.corrcoef(left, right)[0, 1])


@dataclass(frozen=True)
class Throughput:
    """How many trials ended in each window of time. Retried attempts are counted apart."""

    edges_s: tuple[float, ...]  #: one more than windows
    counted: tuple[int, ...]  #: complete and pruned
    others: tuple[int, ...]  #: failed attempts
    running: tuple[float, ...]  #: mean number of attempts at the same time

    @property
    def window_s(self) -> float:
        return self.edges_s[1] - self.edges_s[0]

    @property
    def per_hour(self) -> float:
        """Trials that ended well, per hour of the whole time."""
        return sum(self.counted) * 3600 / (self.edges_s[-1] - self.edges_s[0])


def throughput(study: StudyAttempts) -> Throughput:
    """Count ends over time, in windows of a round length."""
    start_s = min(attempt.start_s for attempt in study.attempts)
    length_s = max(max(attempt.end_s for attempt in study.attempts) - start_s, 1e-3)
    count = int(min(_WINDOWS, max(4, len(study.attempts) // 3)))
    window_s = _round_up(length_s / count)
    edges = np.arange(0, math.ceil(length_s / window_s) + 1) * window_s
    ends = [a for a in study.attempts if a.end != "running"]
    well = [a.end_s - start_s for a in ends if a.end in (EndKind.COMPLETE, EndKind.PRUNED)]
    other = [a.end_s - start_s for a in ends if a.end not in (EndKind.COMPLETE, EndKind.PRUNED)]
    busy = np.zeros(len(edges) - 1)
    for attempt in study.attempts:
        overlap = np.minimum(attempt.end_s - start_s, edges[1:]) - np.maximum(attempt.start_s - start_s, edges[:-1])
        busy += np.clip(overlap, 0, None)
    lengths = np.minimum(edges[1:], length_s) - edges[:-1]  # the last window is seldom full
    return Throughput(
        tuple(edges.tolist()),
        tuple(np.histogram(well, edges)[0].tolist()),
        tuple(np.histogram(other, edges)[0].tolist()),
        tuple((busy / np.maximum(lengths, 1e-9)).tolist()),
    )


_ROUND_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


def _round_up(seconds: float) -> float:
    return next((step for step in _ROUND_S if step >= seconds), math.ceil(seconds / 86400) * 86400.0)


#: The parts of an attempt's time, in their order, with what each is.
PARTS = {
    "spawn_s": "starting the process and its imports (none where a spare waited)",
    "handover_s": "from hand-over to the objective's first line",
    "run_s": "the objective",
    "back_s": "until its memory was seen back",
}


@dataclass(frozen=True)
class StartupTax:
    """Where the time of attempts goes. Arrays have one value per attempt, seconds."""

    numbers: tuple[int, ...]
    parts: dict[str, tuple[float, ...]]  #: by the names of `PARTS`
    spares: int  #: attempts that began in a process that was waiting

    @property
    def share(self) -> float:
        """Part of the attempts' time that is not the objective."""
        total = sum(sum(values) for values in self.parts.values())
        return 1 - sum(self.parts["run_s"]) / total if total > 0 else 0.0

    def median_s(self, part: str) -> float:
        return float(np.median(self.parts[part])) if self.numbers else 0.0


def startup_tax(study: StudyAttempts) -> StartupTax:
    """Split the time of every attempt that reached its objective."""
    rows = [a for a in study.ended if a.facts is not None and a.facts.run_s is not None]
    parts = {
        name: tuple(float((getattr(a.facts, name) if name != "back_s" else a.back_s) or 0.0) for a in rows)
        for name in PARTS
    }
    # A spare's start is over before its trial comes: it costs the device nothing, so nothing is counted.
    return StartupTax(tuple(a.number for a in rows), parts, sum(bool(a.facts and a.facts.spare) for a in rows))
