"""The processes below a process: walked and ended. Linux only, and light: a keeper forks with this imported."""

# Not pathlib here: it takes longer to import than all of this may.
# ruff: noqa: PTH110, PTH123, PTH208

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

#: Programs that clean up after the process that started them and then end by themselves: killed at once they would
#: leave shared memory behind that outlives everybody.
_TIDY = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
TIDY_S = 0.5


def _prctl(option: int, value: int) -> None:
    number = ctypes.c_ulong(value)
    zero = ctypes.c_ulong(0)
    if ctypes.CDLL(None, use_errno=True).prctl(option, number, zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) was refused")


def become_subreaper() -> None:
    """From now on orphans below this process become its children, instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: signal.Signals, parent: int) -> None:
    """Get a signal when the parent's thread that started this process ends; exit if it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def set_name(name: str) -> None:
    """Set what `ps` and `top` show for this process; at most 15 letters."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(buffer))


def started_at(pid: int) -> int | None:
    """Return when a living process started, in clock ticks since boot; with the pid it names a process for good."""
    fields = stat_of(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def stat_of(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat from the state on, a corpse's too; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def children_of(pid: int) -> list[int]:
    """Return the direct children of a process, corpses included."""
    if not _KERNEL_LISTS_CHILDREN:
        return _children_by_scan(pid)
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):  # it ends while we look; its children move up
        pass
    return found


_KERNEL_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _children_by_scan(pid: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = stat_of(int(entry))
            if fields is not None and int(fields[1]) == pid:
                found.append(int(entry))
    return found


def below(pid: int) -> Iterator[tuple[int, int]]:
    """Yield (pid, start time) of each living process below one, parents before children."""
    waiting = children_of(pid)
    while waiting:
        current = waiting.pop(0)
        started = started_at(current)
        waiting += children_of(current)
        if started is not None:
            yield current, started


def kill_exactly(pid: int, started: int) -> None:
    """SIGKILL that very process. A number that has gone to somebody else meanwhile is left alone."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:  # gone; or out of descriptors, then the next round gets it
        return
    try:
        if started_at(pid) == started:  # the descriptor pins it: what is read now is what is signalled
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone, or a set-uid program: nothing we may do
        pass
    finally:
        os.close(fd)


def is_tidy(pid: int) -> bool:
    """Return whether a process is one that cleans up after others and ends when they have."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(name in line for name in _TIDY)


def end_all_below(pid: int, tidy_until_s: float) -> bool:
    """Kill every process below one, once; False when there was none but corpses. Call it again until then.

    Args:
        pid: A process whose orphans stay below it: a subreaper.
        tidy_until_s: Until this time of the monotonic clock the tidy ones may end by themselves.
    """
    found = False
    spare = time.monotonic() < tidy_until_s
    for current, started in below(pid):
        found = True
        if not (spare and is_tidy(current)):
            kill_exactly(current, started)
    return found
