"""Folders of MPS daemons that nobody uses any more: of workers that were killed together with the daemon's guard.

Such a folder bears no worker's name, and a container that shares /tmp may use one whose processes are not seen from
here. So each sign of life counts: a process that names it, a socket that answers, a file that is locked.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

#: As `devices.mps` makes them.
PARENT = Path("/tmp")  # noqa: S108 - sockets need a short path
PREFIX = "vpm-"
#: A younger one may be of a daemon that starts just now.
AGE_S = 60.0


def stale_mps_folders(parent: Path = PARENT, proc: Path = Path("/proc")) -> Iterator[Path]:
    """Yield folders of this user's MPS daemons that show no sign of life."""
    words: bytes | None = None
    for folder in sorted(parent.glob(f"{PREFIX}*")):
        if not _is_ours(folder) or _youngest_age_s(folder) < AGE_S:
            continue
        words = _words_of_all(proc) if words is None else words
        if os.fsencode(folder) not in words and not any(_lives(path) for path in folder.glob("p/*")):
            yield folder


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _youngest_age_s(folder: Path) -> float:
    times = []
    for path in (folder, *folder.glob("*"), *folder.glob("*/*")):
        try:
            times.append(path.lstat().st_mtime)
        except OSError:
            continue
    return time.time() - max(times, default=0.0)


def _words_of_all(proc: Path) -> bytes:
    """Return arguments and variables of all processes, as far as they can be read: a guard names its folder."""
    found = []
    for entry in proc.iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            for name in ("cmdline", "environ"):
                try:
                    found.append((entry / name).read_bytes())
                except OSError:  # gone, or somebody else's
                    continue
    return b"\n".join(found)


def _lives(path: Path) -> bool:
    """Say whether somebody answers at a socket, or holds a lock on a file; what cannot be tried counts as alive."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISSOCK(mode):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(1.0)
                client.connect(str(path))
            return True
        if stat.S_ISREG(mode):
            with path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True
    return False
