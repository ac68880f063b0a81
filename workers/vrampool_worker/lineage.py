"""Whose process is this? A mark that everything below a worker inherits, and that outlives worker, keeper and init.

A daemon that a trial left behind may have cleared its environment, changed its session and its directory, and have init
for a parent once keeper and worker are both killed. What it cannot lose unasked are its resource limits: they pass
through fork and exec. Linux has ignored RLIMIT_RSS since 2.4.30, so its soft limit carries the mark: a number far above
any memory, made of a fixed pattern, the worker's pid and its start time. Anybody may read it in /proc/PID/limits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vrampool_worker import process_tree

_log = logging.getLogger("vrampool.worker")

PROC = Path("/proc")
#: 15 bits of pattern, 22 of pid (the kernel's largest), 26 of the start time in clock ticks: enough for 7 days apart.
_PATTERN = 0x5652
_PID_BITS = 22
_TIME_BITS = 26
_LINE = "Max resident set"


@dataclass(frozen=True)
class Mark:
    """The worker that a process comes from."""

    worker_pid: int
    worker_time: int  #: the low bits of its start time

    @property
    def worker_lives(self) -> bool:
        """Whether that very worker is alive, and not another process that has its pid by now."""
        started = process_tree.started_at(self.worker_pid)
        return started is not None and _low(started) == self.worker_time


def own_mark() -> int:
    """Return the limit that marks what comes from this process."""
    pid = os.getpid()
    return (_PATTERN << (_PID_BITS + _TIME_BITS)) | (pid << _TIME_BITS) | _low(process_tree.started_at(pid) or 0)


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Mark this process, and so everything it starts while the block lasts."""
    before = resource.getrlimit(resource.RLIMIT_RSS)
    try:
        resource.setrlimit(resource.RLIMIT_RSS, (own_mark(), before[1]))
    except (ValueError, OSError) as error:  # somebody has bounded it
        _log.warning("what trials leave behind cannot be marked, so `vrampool reclaim` will not find it: %s", error)
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_RSS, before)


def mark_of(pid: int, proc: Path = PROC) -> Mark | None:
    """Return the mark of a process; None: it has none, or it is gone."""
    try:
        lines = (proc / str(pid) / "limits").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(_LINE):
            soft = line[len(_LINE) :].split()[0]
            return _parse(int(soft)) if soft.isdigit() else None
    return None


def _parse(limit: int) -> Mark | None:
    if limit >> (_PID_BITS + _TIME_BITS) != _PATTERN:
        return None
    return Mark((limit >> _TIME_BITS) & ((1 << _PID_BITS) - 1), _low(limit))


def _low(number: int) -> int:
    return number & ((1 << _TIME_BITS) - 1)
