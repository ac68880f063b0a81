"""What does not end: memory that stays in use after its trial, named by who holds it; processes that cannot be killed.

Naming is for people. Nothing here is ever signalled: a pid that a driver names may be somebody else's.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vrampool.units import format_bytes
from vrampool_worker.devices import DeviceReading
from vrampool_worker.devices.trees import PROC, below
from vrampool_worker.ledger import Release

if TYPE_CHECKING:
    from vrampool_worker.attempts import Attempt
    from vrampool_worker.children.child import Child
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")

#: How often the log repeats that memory is still missing: not with every reading.
AGAIN_S = 60.0
_COMMAND_LETTERS = 80


@dataclass(frozen=True)
class Holder:
    """A process that the driver lists on the device and that no trial of ours explains."""

    pid: int
    held_bytes: int | None
    command: str  #: "": there is no such process any more, only the driver's entry
    age_s: float | None
    foreign: bool  #: the pid is one of another namespace, the host's: its name cannot be read here

    def __str__(self) -> str:
        held = format_bytes(self.held_bytes) if self.held_bytes is not None else "an unknown amount"
        if self.foreign:
            return f"pid {self.pid} of the host holds {held}"
        if not self.command:
            return f"pid {self.pid} holds {held}; the process is gone, only the driver still lists it"
        age = f", started {words_of_age(self.age_s)} ago" if self.age_s is not None else ""
        return f"pid {self.pid} ({self.command}{age}) holds {held}"


def words_of_age(seconds: float) -> str:
    """Say a length of time in its largest unit: "40 s", "12 min", "3 h", "2 days"."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def holder(pid: int, held_bytes: int | None, *, foreign: bool = False, proc: Path = PROC) -> Holder:
    """Describe a process on the device as far as /proc knows it."""
    if foreign:
        return Holder(pid, held_bytes, "", None, True)
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        fields = (proc / str(pid) / "stat").read_text(errors="replace")
        if not words:  # a corpse, or a thread of the kernel
            words = fields.partition("(")[2].rpartition(")")[0]
        started_s = int(fields.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        age_s = float((proc / "uptime").read_text().split()[0]) - started_s
    except (OSError, ValueError, IndexError):
        return Holder(pid, held_bytes, "", None, False)
    if len(words) > _COMMAND_LETTERS:
        words = words[: _COMMAND_LETTERS - 3] + "..."
    return Holder(pid, held_bytes, words, max(0.0, age_s), False)


class CardProcesses:
    """Since when the driver lists each process of the device. Only then can what came with a trial be told apart."""

    def __init__(self, proc: Path = PROC) -> None:
        self._since: dict[int, float] = {}
        self._proc = proc

    def note(self, reading: DeviceReading) -> None:
        self._since = {pid: self._since.get(pid, reading.at_s) for pid in reading.process_bytes}

    def came_since(self, since_s: float, reading: DeviceReading, keepers: Iterable[int]) -> list[Holder]:
        """Return who came to the device at or after that time and is below none of these keepers, largest first."""
        ours = {pid for keeper in keepers for pid in below(keeper, self._proc)}
        listed: Mapping[int, int | None] = reading.process_bytes
        found = [
            holder(pid, listed[pid], foreign=reading.foreign_pids, proc=self._proc)
            for pid, first_s in self._since.items()
            if first_s >= since_s and pid in listed and pid not in ours
        ]
        return sorted(found, key=lambda item: item.held_bytes or 0, reverse=True)


@dataclass(frozen=True)
class _Left:
    label: str
    residue_bytes: int
    holders: tuple[str, ...]

    def __str__(self) -> str:
        by = "; ".join(self.holders) or "the driver names no process that holds it"
        return f"{self.label} left {format_bytes(self.residue_bytes)}: {by}"


class ReleaseWatch:
    """Knows what of ended trials is still there. Only the main loop calls it."""

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop
        self._processes = CardProcesses()
        self._left: list[_Left] = []
        self._stuck: set[Child] = set()
        self._logged_s = 0.0

    @property
    def sentences(self) -> tuple[str, ...]:
        """Name what ended trials left in use, the newest last; empty when all of it has gone."""
        return tuple(str(item) for item in self._left)

    def on_reading(self, reading: DeviceReading) -> None:
        """The device was read."""
        self._processes.note(reading)
        if self._left and not self._loop.ledger.left_bytes:
            _log.info("what trials left in use is back: %s", "; ".join(self.sentences))
            self._left.clear()

    def released(self, attempt: Attempt, release: Release, reading: DeviceReading) -> tuple[str, ...]:
        """A lease was released; return who holds what is left of it, in words."""
        if not release.residue_bytes or not self._loop.ledger.left_bytes:
            return ()
        keepers = [child.keeper_pid for child in self._loop.runner.children]
        holders = self._processes.came_since(attempt.taken_at_s, reading, keepers)
        left = _Left(attempt.label, release.residue_bytes, tuple(str(item) for item in holders[:5]))
        self._left = [*self._left[-9:], left]
        self._logged_s = time.monotonic()
        _log.warning("%s", left)
        return left.holders

    def look(self) -> None:
        """Look every few seconds: who should be gone and is not?"""
        now_s = time.monotonic()
        for child in self._loop.runner.children - self._stuck:
            limit_s = self._loop.settings.give_back_s  # killed for so long: it hangs in the kernel or the driver
            if child.ending_since_s is not None and now_s - child.ending_since_s > limit_s:
                self._stuck.add(child)
                what = self._loop.runner.label_of(child)
                self._loop.ledger.quarantine(
                    f"the process of {what} cannot be killed: it keeps its memory until it is gone", now_s
                )
                _log.error("%s (keeper %d) cannot be killed; the device is quarantined", what, child.keeper_pid)
        for child in self._stuck - self._loop.runner.children:
            self._stuck.discard(child)
            _log.warning("a process that could not be killed is gone; `vrampool resume` lifts the quarantine")
        if self._left and now_s - self._logged_s > AGAIN_S:
            self._logged_s = now_s
            _log.warning("still in use on %s: %s", self._loop.device.label, "; ".join(self.sentences))
