"""What the control group of this process allows: memory and cores, of either version of the interface."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Version 1 writes "no limit" as the largest multiple of a page below 2**63; nothing real comes near this.
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True)
class Allowance:
    """One limit that holds for this process, and how much of it is used now, in bytes."""

    limit_bytes: int
    used_bytes: int  #: file pages that the kernel drops first are not in it


@dataclass(frozen=True)
class _Files:
    controller: str
    limit: str
    usage: str
    dropped_first: str  #: key in memory.stat


_V1 = _Files("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("", "memory.max", "memory.current", "inactive_file")


def memory_allowances(root: Path = Path("/")) -> list[Allowance]:
    """Return the memory limits of this process's group and of those above it; empty where there are none.

    Args:
        root: Where ``proc`` and the mount points are looked for.
    """
    found = []
    for files in (_V1, _V2):
        for folder in _levels(root, files.controller):
            limit_bytes = _read_int(folder / files.limit)
            if limit_bytes is None or limit_bytes >= _NO_LIMIT_BYTES:
                continue
            used_bytes = _read_int(folder / files.usage) or 0
            dropped_bytes = _read_stat(folder / "memory.stat", files.dropped_first)
            found.append(Allowance(limit_bytes, max(0, used_bytes - dropped_bytes)))
    return found


def host_bytes(root: Path = Path("/")) -> int:
    """Return the host's memory as far as this process may have it: the least limit of its groups, or all."""
    limits = [item.limit_bytes for item in memory_allowances(root)]
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits])


def oom_kills(root: Path = Path("/")) -> list[int]:
    """Return how many processes the kernel has killed in this process's group, and in those above it, for memory."""
    counts = [read_count(folder / "memory.events", "oom_kill") for folder in _levels(root, "")]
    counts += [read_count(folder / "memory.oom_control", "oom_kill") for folder in _levels(root, "memory")]
    return [count for count in counts if count is not None]


def read_count(path: Path, key: str) -> int | None:
    """Return a number of a file with one name and number a line; None when it is not there."""
    for line in _read_text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdigit():
            return int(value)
    return None


def cores(root: Path = Path("/")) -> int:
    """Return how many cores this process may use: its affinity, cut by a CPU quota."""
    allowed = len(os.sched_getaffinity(0))
    for folder in _levels(root, ""):
        quota, _, period = _read_text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            allowed = min(allowed, _whole_cores(int(quota), int(period)))
    for folder in _levels(root, "cpu"):
        quota_us, period_us = _read_int(folder / "cpu.cfs_quota_us"), _read_int(folder / "cpu.cfs_period_us")
        if quota_us is not None and period_us and quota_us > 0:
            allowed = min(allowed, _whole_cores(quota_us, period_us))
    return max(1, allowed)


def _whole_cores(quota: int, period: int) -> int:
    return max(1, quota // max(1, period))


def _levels(root: Path, controller: str) -> Iterator[Path]:
    """Yield the group's folder and those above it up to the mount point. An empty controller: version 2."""
    path = _group_path(root, controller)
    mount = _mount(root, controller)
    if path is None or mount is None:
        return
    mount_root, top = mount
    # In a container without a namespace of its own the group's path starts with what is mounted, not with "/".
    inside = path[len(mount_root) :] if mount_root != "/" and path.startswith(mount_root) else path
    folder = top / inside.lstrip("/")
    if ".." in folder.parts or not folder.is_dir():
        folder = top
    while True:
        yield folder
        if folder == top or top not in folder.parents:
            return
        folder = folder.parent


def _group_path(root: Path, controller: str) -> str | None:
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (controller in controllers.split(",")) if controller else (number == "0" and not controllers):
            return path
    return None


def _mount(root: Path, controller: str) -> tuple[str, Path] | None:
    for line in _read_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or len(kinds) < 3:
            continue
        is_v1 = kinds[0] == "cgroup" and controller in kinds[2].split(",")
        if is_v1 if controller else kinds[0] == "cgroup2":
            return fields[3], root / fields[4].lstrip("/")
    return None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _read_int(path: Path) -> int | None:
    text = _read_text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read_stat(path: Path, key: str) -> int:
    return read_count(path, key) or 0
