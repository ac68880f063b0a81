"""The host-wide lock on a device: one worker for each, unless all that hold it share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vrampool.errors import DeviceConflictError

#: The first that can be written holds the lock files. /dev/shm comes first: it is the same for every user and service
#: of a host (a service's /tmp may be its own), it is there when the root file system is read-only, and empty at boot.
_FOLDERS = (Path("/dev/shm"), Path("/run/lock"), Path("/tmp"))  # noqa: S108 - the file's owner does not matter, only its lock


@contextmanager
def device_lock(device_id: str, share: bool, *, folder: Path | None = None) -> Iterator[None]:
    """Hold a device against other workers of this host for as long as the context lasts, or the process lives.

    Args:
        device_id: UUID of the device, or "cpu".
        share: Let other workers that share hold it too; each then needs a budget of its own.
        folder: Where the lock file lies; None: a folder that all users of the host see.

    Raises:
        DeviceConflictError: another worker holds it, and not both share.
    """
    path = _lock_path(device_id, folder)
    handle = _open(path)
    try:
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if share else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DeviceConflictError(_conflict(device_id, share, path)) from None
        _sign(path)
        yield
    finally:
        os.close(handle)  # and with it the lock; the file stays, or two could hold locks on two files of one name


def _lock_path(device_id: str, folder: Path | None) -> Path:
    name = f"vrampool-{re.sub(r'[^A-Za-z0-9.-]', '_', device_id)}.lock"
    if folder is not None:
        return folder / name
    # Where nothing but a scratch directory can be written, workers that share it see each other at least.
    for candidate in (*_FOLDERS, Path(tempfile.gettempdir())):
        if candidate.is_dir() and os.access(candidate, os.W_OK):
            return candidate / name
    raise DeviceConflictError(f"no folder for the lock on {device_id}; make /dev/shm or /tmp writable")


def _open(path: Path) -> int:
    # Reading is enough for a lock. Asking to create would be refused for a file of another user in a folder that
    # everybody may write to (fs.protected_regular), so that is only done when it is not there.
    for _ in range(3):
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise DeviceConflictError(f"cannot open the lock {path}: {error.strerror}; remove the file") from None
        try:
            return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            continue  # another worker made it in this moment
        except OSError as error:
            raise DeviceConflictError(f"cannot make the lock {path}: {error.strerror}") from None
    raise DeviceConflictError(f"cannot open the lock {path}: it comes and goes")


def _sign(path: Path) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # another user's file: the lock holds all the same, only its text is older
    with contextlib.suppress(OSError), os.fdopen(handle, "w") as file:  # a full disk, as a small /dev/shm
        state_dir = os.environ.get("VRAMPOOL_STATE_DIR", "")
        file.write(f"pid {os.getpid()}, of {_user()}" + (f", pool in {state_dir}" if state_dir else ""))


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user has no name
        return f"user {os.getuid()}"


def _conflict(device_id: str, share: bool, path: Path) -> str:
    try:
        holder = path.read_text().strip()
    except OSError:
        holder = ""
    who = f"another worker ({holder})" if holder.startswith("pid ") else "another worker"
    if share:
        return f"{device_id} is held by {who} that does not share it; start both with --share and a --budget of its own"
    return f"{device_id} is held by {who}; stop that one, or start both with --share and a --budget of its own"
