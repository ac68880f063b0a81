"""Nothing is left behind: processes that end with who started them, and signals that let blocks end in order."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Collection
from contextlib import suppress

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: Processes that are asked to end have so long.
_GRACE_S = 3.0
#: What is on its way out has so long to be gone.
_ENDING_S = 1.0


def end_with_parent(signum: int = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)


def exit_on_signals() -> None:
    """Leave by `SystemExit` on SIGTERM and SIGINT, so that each `finally` runs; later ones are ignored meanwhile."""

    def leave(signum: int, _frame: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + signum)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, leave)


def adopt_orphans() -> None:
    """Become the parent of what others leave behind, so that `end_leftovers` finds it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_leftovers(keep: Collection[int] = ()) -> list[str]:
    """End all processes below this one but those with the ids to keep; return the command lines of what was there.

    What is just about to end, as multiprocessing's servers are when their owner is gone, is not counted.
    """
    below = [process for process in psutil.Process().children(recursive=True) if process.pid not in keep]
    _, left = psutil.wait_procs(below, _ENDING_S)
    left = [process for process in left if _lives(process)]
    lines = []
    for process in left:
        with suppress(psutil.NoSuchProcess):
            lines.append(" ".join(process.cmdline())[:100] or process.name())
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                end(process)
        _, left = psutil.wait_procs(left, _GRACE_S)
    return lines


def _lives(process: psutil.Process) -> bool:
    """False for a corpse: of a daemon's children it may be that nobody has asked how they ended."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
