"""All processes that a run has started, however they were handed on: weighed, and ended at the end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_MIB = 1024**2


def adopt_orphans() -> None:
    """Become the parent of what daemons leave behind, so that `descendants` finds it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[psutil.Process]:
    """Return all processes under this one that still run."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def weigh() -> tuple[float, int]:
    """Return what all processes under this one hold, in MiB with shared pages counted once, and their number.

    Needs the right to read them, which only those of other users deny.
    """
    total, count = 0, 0
    for process in descendants():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += process.memory_full_info().pss
            count += 1
    return total / _MIB, count


def cpu_by_part() -> dict[str, float]:
    """Return the CPU seconds of all processes under this one, by what they are, those of the trials apart.

    What a process has waited for is its `trials`: in the pool the worker's, through the keepers. Those that are being
    waited for just now are missing.
    """
    parts: Counter[str] = Counter()
    for process in descendants():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            part, used = _part(process.cmdline()), process.cpu_times()
            parts[part] += used.user + used.system
            parts[f"{part}: its trials"] += used.children_user + used.children_system
    return {part: round(used_s, 2) for part, used_s in parts.most_common() if used_s >= 0.01}


def _part(words: Sequence[str]) -> str:
    """Say what a process is: its module and a subcommand, else its program."""
    if "-m" not in words:
        return Path(words[0]).name if words else "unknown"
    module, *rest = words[words.index("-m") + 1 :]
    return " ".join([module, *rest[:1]]) if module == "vrampool" else module


def busy_s() -> float:
    """Return how long the cores of this machine have been busy since it started, all together."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def end_all(driver_pid: int, grace_s: float = 1.5) -> list[str]:
    """End whatever is still there; return the command lines of it."""
    left = descendants()
    lines = []
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            lines.append(" ".join(process.cmdline())[:100])
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                end(process)
        until_s = time.monotonic() + grace_s
        while descendants() and time.monotonic() < until_s:
            time.sleep(0.02)
    _reap(driver_pid)
    return lines


def _reap(driver_pid: int) -> None:
    """Take in orphans that have ended: only then is the CPU time they used counted as ours."""
    for process in psutil.Process().children():
        if process.pid != driver_pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
