"""What leases were beyond what trials held, from a device's samples and the facts of attempts: pure.

Weighted by time: byte seconds leased and not used, as a part of the byte seconds used. A sample counts until the next
one. A lease counts from the moment it is granted until the memory is seen back, start and end of the process included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

#: A gap between two samples that is longer than this is none of the trials' time.
_LONGEST_S = 1.0
#: A change of a lease that is smaller is rounding.
_LEAST_CHANGE_BYTES = 2**20


@dataclass(frozen=True)
class Attempt:
    """One attempt at a trial: its facts as the pool wrote them, and whose attempt it is."""

    number: int
    root: int  #: number of the trial's first attempt
    end: str
    verdict: str | None
    request_bytes: int | None  #: None: it had the device to itself
    peak_bytes: int | None
    overhead_bytes: int | None
    at_least: bool  #: the peak is a lower bound: the allocator had to free its cache on the way
    shrunk: bool  #: its lease was smaller at its end than it had been

    @property
    def retry(self) -> bool:
        return self.number != self.root

    @property
    def whole(self) -> bool:
        """Say whether its peak is known to be all that it needs."""
        return self.end == "complete" and bool(self.peak_bytes) and not self.at_least


@dataclass
class LeaseTime:
    """What one attempt leased and held over time; bytes x seconds."""

    leased: float = 0.0
    held: float = 0.0  #: at that moment
    seconds: float = 0.0
    largest_bytes: int = 0
    changes: list[int] = field(default_factory=list)  #: bytes, below 0: its lease was made smaller


def lease_times(samples: Sequence[Mapping[str, Any]], study: str, overhead_bytes: int) -> dict[int, LeaseTime]:
    """Return the times of a study's attempts, by number.

    Args:
        samples: Of one device, oldest first.
        study: Its name.
        overhead_bytes: What a process holds beyond torch's allocator, where the driver tells nothing of processes.
    """
    found: dict[int, LeaseTime] = {}
    last: dict[int, int] = {}
    for sample, after in pairwise(samples):
        seconds = min(after["at_s"] - sample["at_s"], _LONGEST_S)
        for trial in sample["trials"]:
            if trial["study"] != study:
                continue
            number, lease_bytes = trial["number"], trial["lease_bytes"]
            time = found.setdefault(number, LeaseTime())
            change = lease_bytes - last.get(number, lease_bytes)
            if abs(change) >= _LEAST_CHANGE_BYTES:
                time.changes.append(change)
            last[number] = lease_bytes
            time.leased += lease_bytes * seconds
            time.held += _held(trial, overhead_bytes) * seconds
            time.seconds += seconds
            time.largest_bytes = max(time.largest_bytes, lease_bytes)
    return found


def _held(trial: Mapping[str, Any], overhead_bytes: int) -> int:
    if trial["measured_bytes"] is not None:
        return int(trial["measured_bytes"])
    reserved = trial.get("torch_reserved_bytes")
    return int(reserved) + overhead_bytes if reserved else 0


@dataclass(frozen=True)
class Over:
    """Over-reservation of some attempts whose whole peak is known, weighted by time; 0.2: 20 % more than used."""

    peaks: float  #: beyond their final peaks
    moment: float  #: beyond what they held at that moment
    unshrunk: float  #: beyond their final peaks, had each kept its largest lease for all of its time
    attempts: int


def over_reserved(attempts: Sequence[Attempt], times: Mapping[int, LeaseTime]) -> Over | None:
    """Return the over-reservation; None where no sample saw such an attempt."""
    known = [(attempt, times[attempt.number]) for attempt in attempts if attempt.whole and attempt.number in times]
    used = sum((attempt.peak_bytes or 0) * time.seconds for attempt, time in known)
    held = sum(time.held for _, time in known)
    if not used or not held:
        return None
    leased = sum(time.leased for _, time in known)
    largest = sum(time.largest_bytes * time.seconds for _, time in known)
    return Over(leased / used - 1, leased / held - 1, largest / used - 1, len(known))


def after_first(attempts: Sequence[Attempt], count: int) -> list[Attempt]:
    """Return the attempts at all trials but the first so many that were asked for."""
    roots = sorted({attempt.root for attempt in attempts})
    early = set(roots[:count])
    return [attempt for attempt in attempts if attempt.root not in early]


def retries_per_100(attempts: Sequence[Attempt]) -> float | None:
    """Return retried attempts per 100 trials; None without any."""
    roots = {attempt.root for attempt in attempts}
    return 100 * sum(attempt.retry for attempt in attempts) / len(roots) if roots else None


def request_error(attempts: Sequence[Attempt]) -> tuple[float, float] | None:
    """Return the medians of (request / final peak) and of its distance from 1, where something was asked for."""
    ratios = [
        attempt.request_bytes / attempt.peak_bytes
        for attempt in attempts
        if attempt.whole and attempt.request_bytes and attempt.peak_bytes
    ]
    return (median(ratios), median(abs(ratio - 1) for ratio in ratios)) if ratios else None


def concurrency(samples: Sequence[Mapping[str, Any]], study: str) -> float | None:
    """Return the mean number of a study's trials on the device, while there were any."""
    seconds = trials = 0.0
    for sample, after in pairwise(samples):
        count = sum(trial["study"] == study for trial in sample["trials"])
        if count:
            lasted_s = min(after["at_s"] - sample["at_s"], _LONGEST_S)
            seconds += lasted_s
            trials += count * lasted_s
    return trials / seconds if seconds else None


def count_moves(lines: Sequence[str], study: str) -> Counter[str]:
    """Count, in a worker's log, what was done with the leases of a study's trials."""
    words = {
        "shrinks asked for": " is to shrink from ",
        "shrinks done": ": gave back ",
        "ends of having the device alone": ": runs alone no longer",
        "grows": ": grew ",
        "grows refused": ": cannot grow ",
    }
    found: Counter[str] = Counter()
    for line in lines:
        if f" {study}/" in line:
            found.update(name for name, word in words.items() if word in line)
    return found
