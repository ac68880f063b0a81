"""Signs of life: by a small file in the state directory a process says that its loop turns, and how it is.

A probe reads them without asking anybody else: neither Redis, nor a database, nor a driver that hangs can make a living
process look dead, and it costs no more than starting Python.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vrampool.processes import is_alive, process_start_time

_log = logging.getLogger("vrampool.health")

FOLDER = "alive"
#: Pause between two touches.
TOUCH_S = 1.0


@dataclass(frozen=True)
class Sign:
    """What a process says of itself."""

    role: str  #: "worker" or "coordinator"
    name: str  #: its name in the pool
    host: str
    pid: int
    start_time: int  #: of the process, in clock ticks since boot: a pid alone is given out again
    limit_s: float  #: a sign that was touched longer ago says that the loop is stuck
    state: str  #: "starting"; a worker: its ledger's state; a coordinator: "leading", "standing by" or "waiting"
    ready: bool  #: does what it is there for
    reason: str = ""  #: why it is not ready
    running: int = 0  #: trials


@dataclass(frozen=True)
class Verdict:
    """One process, judged from outside."""

    sign: Sign
    age_s: float  #: since the last touch
    alive: bool  #: the process is there and its loop turns
    ready: bool
    text: str  #: one line


class SignOfLife:
    """The sign of this process. Its loop calls `show` about every second.

    Args:
        state_dir: The pool's state directory; it may be shared by hosts (an NFS home).
        role: "worker" or "coordinator".
        key: Tells processes of one role on one host apart, and stays over restarts: the device's id.
        name: Name in the pool.
        limit_s: How long the loop may be silent.
    """

    def __init__(self, state_dir: Path, role: str, key: str, *, name: str, limit_s: float) -> None:
        host = socket.gethostname()
        pid = os.getpid()
        self._folder = state_dir / FOLDER
        self._path = self._folder / re.sub(r"[^A-Za-z0-9.@-]", "_", f"{role}-{key}@{host}.json")
        self._sign = Sign(role, name, host, pid, process_start_time(pid) or 0, limit_s, "starting", False)
        self._written: Sign | None = None
        self._told_fault = False
        self._clear_dead()

    def show(self, state: str, *, ready: bool, reason: str = "", running: int = 0) -> None:
        """Say that the loop turns. Never raises: a full disk must not end a worker."""
        sign = dataclasses.replace(self._sign, state=state, ready=ready, reason=reason, running=running)
        try:
            if sign == self._written:
                os.utime(self._path)  # needs no room on a full disk
                return
        except OSError:
            pass  # somebody cleared the folder: write it anew
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            scratch = self._path.with_suffix(f".{self._sign.pid}")
            scratch.write_text(json.dumps(dataclasses.asdict(sign)))
            scratch.replace(self._path)
            self._written = sign
        except OSError as error:
            if not self._told_fault:
                _log.warning("the sign of life %s cannot be written: %s", self._path, error.strerror)
                self._told_fault = True
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def remove(self) -> None:
        """Take the sign away: this process ends in order."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _clear_dead(self) -> None:
        """Remove what processes left that were killed: one that took their place says how it is by itself."""
        for path, verdict in _read(self._folder, self._sign.host):
            if not is_alive(verdict.sign.pid, verdict.sign.start_time):
                with contextlib.suppress(OSError):
                    path.unlink()


def look(state_dir: Path) -> list[Verdict]:
    """Return what the processes of this host say of themselves, coordinators first, each judged."""
    found = [verdict for _, verdict in _read(state_dir / FOLDER, socket.gethostname())]
    return sorted(found, key=lambda verdict: (verdict.sign.role, verdict.sign.name))


def _read(folder: Path, host: str) -> Iterator[tuple[Path, Verdict]]:
    for path in sorted(folder.glob("*.json")):
        try:
            sign = Sign(**json.loads(path.read_text()))
            age_s = max(0.0, time.time() - path.stat().st_mtime)
        except (OSError, ValueError, TypeError):  # just removed, or written by another version
            continue
        if sign.host == host:
            yield path, judge(sign, age_s, is_alive(sign.pid, sign.start_time))


def judge(sign: Sign, age_s: float, there: bool) -> Verdict:
    """Judge a sign.

    Args:
        sign: What the process last said.
        age_s: How long ago it last said anything.
        there: Whether the process exists.
    """
    who = f"{sign.role} {sign.name} (pid {sign.pid})"
    if not there:
        return Verdict(sign, age_s, False, False, f"{who} is gone")
    if age_s > sign.limit_s:
        return Verdict(sign, age_s, False, False, f"{who} is stuck: no sign of life for {age_s:.0f} s")
    why = f": {sign.reason}" if sign.reason else ""
    runs = f", runs {sign.running}" if sign.role == "worker" else ""
    return Verdict(sign, age_s, True, sign.ready, f"{who} is {sign.state}{why}{runs}")
