"""What a local pool keeps in its state directory, and how others find it there."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from vrampool.processes import is_alive
from vrampool.settings import Settings, make_state_dir


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
        """Create the directory for its owner alone.

        Raises:
            SettingsError: it cannot be written; the text names the option that chooses another.
        """
        make_state_dir(self.path)

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
