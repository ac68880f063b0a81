"""The processes of a trial and the host memory they hold, found below its keeper in /proc.

Sums of resident pages are cheap but count shared pages once for each process; proportional sizes are exact but cost
31 ms for each GiB of small pages. So the sum is taken every time, and the exact size only when it matters.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Share of the time spent on exact sizes of one trial: usually, and while it may just be at a new peak.
_USUAL_SHARE = 0.05
_PEAK_SHARE = 0.25


def below(pid: int, proc: Path = PROC) -> list[int]:
    """Return the pids of all processes below one, itself not among them; empty when it is gone.

    A process that is being started or ended in this moment may be missed.
    """
    children_of = _listed_children if _lists_children(proc) else _scanned_children(proc)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = children_of(waiting.pop(), proc)
        found += children
        waiting += children
    return found


@functools.cache
def _lists_children(proc: Path) -> bool:
    # Not every kernel is built with these files. One that has them has them for the thread that asks, too.
    return (proc / "thread-self/children").exists()


def _listed_children(pid: int, proc: Path) -> list[int]:
    pids: list[int] = []
    try:
        # Each thread has its own children: a DataLoader is often started by another one than the main thread.
        for task in (proc / str(pid) / "task").iterdir():
            try:
                pids.extend(int(text) for text in (task / "children").read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue  # the thread ended
    except OSError:
        return []
    return pids


def _scanned_children(proc: Path) -> Callable[[int, Path], list[int]]:
    """Look at every process once, and return what finds children in that."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                # The name in parentheses may hold anything; the parent's pid is the second word after it.
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(folder.name))
    return lambda pid, _: children.get(pid, [])


def resident_bytes(pid: int, proc: Path = PROC) -> int:
    """Return the resident pages of a process in bytes; 0 when it is gone."""
    try:
        return int((proc / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def proportional_bytes(pid: int, proc: Path = PROC) -> int:
    """Return a process's share of its pages (PSS) in bytes; its resident pages where that is not shown to us."""
    try:
        with (proc / str(pid) / "smaps_rollup").open() as lines:
            for line in lines:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # gone, or not ours to look into
    return resident_bytes(pid, proc)


@dataclass
class _Known:
    """The last exact size of a trial."""

    exact_bytes: int
    resident_bytes: int  #: sum at that time
    at_s: float
    cost_s: float
    peak_bytes: int


class TreeMemory:
    """Host memory of trials: every process below each keeper, shared pages counted once.

    What it returns between two exact sizes is the last of them, and only while the trial cannot be above its limit.
    """

    def __init__(self, *, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._known: dict[int, _Known] = {}

    def measure(self, limits: Mapping[int, int | None]) -> dict[int, int | None]:
        """Measure the trial below each pid; see `Device.measure`. None: the keeper is gone."""
        for gone in set(self._known) - set(limits):
            del self._known[gone]
        return {pid: self._one(pid, limit) for pid, limit in limits.items()}

    def _one(self, keeper: int, limit_bytes: int | None) -> int | None:
        if not (self._proc / str(keeper)).is_dir():
            self._known.pop(keeper, None)
            return None
        pids = below(keeper, self._proc)
        sum_bytes = sum(resident_bytes(pid, self._proc) for pid in pids)
        if len(pids) < 2:
            self._known.pop(keeper, None)
            return sum_bytes
        known = self._known.get(keeper)
        if known is None or self._is_due(known, sum_bytes, limit_bytes):
            known = self._known[keeper] = self._exact(pids, sum_bytes, known)
        return known.exact_bytes

    def _is_due(self, known: _Known, sum_bytes: int, limit_bytes: int | None) -> bool:
        # The trial's own pages cannot have grown by more than the sum of the resident ones did.
        most_bytes = known.exact_bytes + max(0, sum_bytes - known.resident_bytes)
        if limit_bytes is not None and most_bytes > limit_bytes:
            return True
        share = _PEAK_SHARE if most_bytes > known.peak_bytes else _USUAL_SHARE
        return self._clock() - known.at_s >= known.cost_s / share

    def _exact(self, pids: list[int], sum_bytes: int, before: _Known | None) -> _Known:
        started_s = self._clock()
        exact_bytes = sum(proportional_bytes(pid, self._proc) for pid in pids)
        ended_s = self._clock()
        peak_bytes = max(exact_bytes, before.peak_bytes if before else 0)
        return _Known(exact_bytes, sum_bytes, ended_s, ended_s - started_s, peak_bytes)
