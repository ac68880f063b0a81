"""Leftovers of trials whose worker is gone: found by the worker's mark, named, and ended when somebody says so.

While a worker lives nothing of a trial can outlast it, and when a worker dies its keepers end what they keep. What is
found here has lost both at once: all of it was killed, or the host was short of everything. Only what carries our mark,
belongs to this user, lives in this PID namespace and comes from a worker that is no more is ever touched.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vrampool.errors import VrampoolError
from vrampool.settings import Settings
from vrampool.units import format_bytes
from vrampool_worker import process_tree
from vrampool_worker.children.launch import stale_scratch
from vrampool_worker.devices import find_devices
from vrampool_worker.lineage import PROC, mark_of
from vrampool_worker.mps_leftovers import stale_mps_folders
from vrampool_worker.release_watch import holder, words_of_age

#: What is killed should be gone long before; what is not hangs in the kernel.
GONE_WITHIN_S = 10.0


@dataclass(frozen=True)
class Orphan:
    """A process that a trial has left behind."""

    pid: int
    started: int  #: in clock ticks since boot: with the pid it names the process for good
    command: str
    age_s: float | None
    worker_pid: int  #: of the worker that is gone
    held: tuple[tuple[str, int], ...] = ()  #: (device, bytes) it holds, where the driver tells

    def __str__(self) -> str:
        age = f", started {words_of_age(self.age_s)} ago" if self.age_s is not None else ""
        holds = "".join(f"; holds {format_bytes(size)} of {device}" for device, size in self.held)
        return f"pid {self.pid} ({self.command}{age}) of worker {self.worker_pid}, which is gone{holds}"


@dataclass(frozen=True)
class Leftovers:
    """All that was found."""

    processes: tuple[Orphan, ...]
    folders: tuple[Path, ...]  #: scratch directories of trials, pipes of MPS daemons

    def __bool__(self) -> bool:
        return bool(self.processes or self.folders)

    def to_json(self) -> dict[str, Any]:
        return {
            "processes": [asdict(item) | {"held": dict(item.held)} for item in self.processes],
            "folders": [str(path) for path in self.folders],
        }


def find(settings: Settings, *, proc: Path = PROC, look_at_devices: bool = True) -> Leftovers:
    """Look for leftovers of this user on this host.

    Args:
        settings: `state_dir`, and what finds the devices.
        proc: Where processes are looked for.
        look_at_devices: Also ask the driver what each of them holds.
    """
    orphans = tuple(_orphans(proc))
    if orphans and look_at_devices:
        held = _held(settings)
        orphans = tuple(Orphan(**{**item.__dict__, "held": tuple(held.get(item.pid, {}).items())}) for item in orphans)
    return Leftovers(orphans, (*stale_scratch(settings.state_dir), *stale_mps_folders()))


def end(found: Leftovers, *, proc: Path = PROC) -> Leftovers:
    """End what was found, and what it has started since; return what is still there."""
    deadline_s = time.monotonic() + GONE_WITHIN_S
    left = found.processes
    while left and time.monotonic() < deadline_s:
        for orphan in left:
            process_tree.kill_exactly(orphan.pid, orphan.started)
        time.sleep(0.02)
        left = tuple(_orphans(proc))
    for folder in found.folders:
        shutil.rmtree(folder, ignore_errors=True)
    return Leftovers(left, tuple(folder for folder in found.folders if folder.exists()))


def _orphans(proc: Path) -> Iterator[Orphan]:
    own_namespace = _namespace(os.getpid(), proc)
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        mark = mark_of(pid, proc)
        if mark is None or mark.worker_lives:
            continue
        # In another PID namespace the worker has another number than the mark says, and may well be alive.
        if not _is_own_users(entry) or own_namespace is None or _namespace(pid, proc) != own_namespace:
            continue
        started = process_tree.started_at(pid)
        if started is not None:
            known = holder(pid, None, proc=proc)
            yield Orphan(pid, started, known.command, known.age_s, mark.worker_pid)


def _is_own_users(entry: Path) -> bool:
    try:
        return entry.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _namespace(pid: int, proc: Path) -> str | None:
    try:
        return str((proc / str(pid) / "ns/pid").readlink())
    except OSError:  # gone, or not ours to look into
        return None


def _held(settings: Settings) -> Mapping[int, Mapping[str, int]]:
    """Return what processes hold, by pid and device, as far as drivers tell; a bonus."""
    found: dict[int, dict[str, int]] = {}
    try:
        devices = find_devices(settings.with_changes(gpu="all"), os.environ)
        readings = [(device.label, device.read()) for device in devices if device.kind == "cuda"]
    except VrampoolError:
        return found
    for label, reading in readings:
        for pid, size in {} if reading.foreign_pids else reading.process_bytes.items():
            if size is not None:
                found.setdefault(pid, {})[label] = size
    return found
