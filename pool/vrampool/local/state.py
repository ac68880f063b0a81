"""What a local pool keeps in its state directory, and how others find it there."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from vrampool.errors import SettingsError
from vrampool.processes import is_alive
from vrampool.settings import Settings, make_state_dir
from vrampool.units import MIB, format_bytes

#: A pool's study, queue and first logs take a fifth of it; on less it would start, and stop in the midst of a study.
ROOM_BYTES = 4 * MIB
#: Errors that say that there is no room: what each says, and what helps.
_NO_ROOM = {
    errno.ENOSPC: ("the disk is full", "make room"),
    errno.EDQUOT: ("the disk quota of this user is used up", "make room"),
    errno.EFBIG: ("the limit on the size of a file (`ulimit -f`) is too low", "raise it"),
}


@dataclass(frozen=True)
class PoolRecord:
    """A local pool that runs. Written by its host process, read by everybody who attaches."""

    pid: int  #: of the host process
    start_time: int  #: of that process, in clock ticks since boot: a pid alone is given out again
    redis: str
    storage: str
    owned: bool  #: ends with the process that started it
    gpu: str
    largest_budget_bytes: int = 0  #: of its devices; known before their workers are


class StateDir:
    """The files of a local pool."""

    def __init__(self, settings: Settings) -> None:
        self.path = settings.state_dir

    def make(self) -> None:
        """Create the directory for its owner alone, and see that a pool has room there.

        Raises:
            SettingsError: it cannot be written; the text names the option that chooses another.
        """
        make_state_dir(self.path)
        _see_room(self.path)

    @property
    def record_file(self) -> Path:
        return self.path / "pool.json"

    @property
    def lock_file(self) -> Path:
        return self.path / "host.lock"

    @property
    def failure_file(self) -> Path:
        return self.path / "failure.json"

    @property
    def valkey(self) -> Path:
        return self.path / "valkey"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.path / 'study.db'}"

    def read(self) -> PoolRecord | None:
        """Return the pool that runs here, or None. A record whose process is gone does not count."""
        try:
            record = PoolRecord(**json.loads(self.record_file.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return record if is_alive(record.pid, record.start_time) else None

    def was_killed(self) -> bool:
        """True when the last pool here did not end in order: some of its processes may not have ended yet."""
        return self.record_file.exists() and self.read() is None

    def write(self, record: PoolRecord) -> None:
        self._replace(self.record_file, asdict(record))

    def write_failure(self, text: str, exit_code: int) -> None:
        self._replace(self.failure_file, {"text": text, "exit_code": exit_code})

    def failure(self) -> tuple[str, int] | None:
        """Return why the last pool here ended by itself, and with which code."""
        try:
            raw = json.loads(self.failure_file.read_text())
            return str(raw["text"]), int(raw["exit_code"])
        except (OSError, ValueError, KeyError):
            return None

    def clear(self) -> None:
        self.record_file.unlink(missing_ok=True)

    def clear_failure(self) -> None:
        self.failure_file.unlink(missing_ok=True)

    def _replace(self, file: Path, content: dict[str, object]) -> None:
        # Moved into place: a reader sees the old or the new record, never half of one.
        scratch = file.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(content))
        scratch.replace(file)


def _see_room(folder: Path) -> None:
    """See that a pool can be written there. The room is really taken: what a quota leaves is not told otherwise.

    Raises:
        SettingsError: there is too little.
    """
    probe = folder / f".room-{os.getpid()}"
    try:
        with probe.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
    except OSError as error:
        if (problem := no_room(error, folder)) is not None:
            raise problem from None
        # Anything else says nothing about room: this file system cannot take it ahead.
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def no_room(error: OSError, folder: Path) -> SettingsError | None:
    """Return what is to be told of an error by which something could not be written; None: room is not what lacks."""
    if error.errno not in _NO_ROOM:
        return None
    what, remedy = _NO_ROOM[error.errno]
    free = ""
    if error.errno == errno.ENOSPC:
        with contextlib.suppress(OSError):
            free = f" ({format_bytes(shutil.disk_usage(folder).free)} free)"
    return SettingsError(
        f"no room in the state directory {folder}: {what}{free}, and a pool needs "
        f"{format_bytes(ROOM_BYTES)}; {remedy}, or choose another with --state-dir or VRAMPOOL_STATE_DIR"
    )
