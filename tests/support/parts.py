"""A pool whose parts are started one by one, as on several machines: a Redis, coordinators, workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import pools
from support.pools import FAST
from support.waiting import until

import vrampool
from vrampool.local.embedded import EmbeddedValkey

SECRET = "6d" * 32
#: Those that run now; when a test fails, their logs are shown.
living: list[Parts] = []


class Parts:
    """The parts of one pool, in a folder of its own.

    Args:
        folder: For logs, state and the database.
        redis: URL, or none to start a Valkey here.
        settings: Fields of `Settings` that differ from `FAST`.
    """

    def __init__(self, folder: Path, redis: str, **settings: Any) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.redis = redis
        secret = self.state_dir / "secret"
        secret.parent.mkdir(parents=True, exist_ok=True)
        secret.write_text(SECRET)
        secret.chmod(0o600)
        self.settings: dict[str, Any] = {
            **FAST,
            "redis": redis,
            "storage": f"sqlite:///{folder}/studies.db",
            "state_dir": self.state_dir,
            **settings,
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []  #: those that `worker` has started
        self._names: dict[int, Path] = {}

    def start(
        self, *command: str | Path, env: Mapping[str, str] | None = None, **settings: Any
    ) -> subprocess.Popen[bytes]:
        """Start a program with the pool's settings in its environment; `settings` differ for this one."""
        variables = {
            f"VRAMPOOL_{name.upper()}": ("1" if value is True else str(value))
            for name, value in {**self.settings, **settings}.items()
            if value is not None
        }
        log = self.folder / f"{len(self._processes)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(word) for word in command],
                env={**os.environ, **variables, **(env or {})},
                stdout=out,
                stderr=out,
                process_group=0,
                cwd=self.folder,
            )
        self._processes.append(process)
        self._names[process.pid] = log
        return process

    def coordinator(self, **options: Any) -> subprocess.Popen[bytes]:
        return self.start(sys.executable, "-m", "vrampool", "coordinator", **options)

    def worker(self, **options: Any) -> subprocess.Popen[bytes]:
        """Start `vrampool worker`: a supervisor and, below it, the worker of the CPU."""
        self.workers.append(self.start(sys.executable, "-m", "vrampool", "worker", "--gpu", "cpu", **options))
        return self.workers[-1]

    def pool(self, **settings: Any) -> vrampool.Pool:
        """Return the pool as a notebook sees it."""
        return vrampool.Pool(**{**self.settings, **settings})

    def running(self) -> list[subprocess.Popen[bytes]]:
        """Return those of the started processes that still run."""
        return [process for process in self._processes if process.poll() is None]

    def log_of(self, process: subprocess.Popen[bytes]) -> str:
        return self._names[process.pid].read_text(errors="replace")

    def logs(self) -> str:
        """Return the ends of what the processes wrote."""
        parts = []
        for path in self.log_files():
            parts.append("\n".join([f"==> {path.name}", *path.read_text(errors="replace").splitlines()[-60:]]))
        return "\n".join(parts)

    def log_files(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))

    def stop(self) -> None:
        """End them in order, the last one first; whoever does not hear is killed."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def parts(folder: Path, **settings: Any) -> Iterator[Parts]:
    """A Redis, and what a test starts beside it; all of it ends with the block."""
    with EmbeddedValkey(folder / "valkey") as server:
        made = Parts(folder, server.url, **settings)
        living.append(made)
        try:
            yield made
        finally:
            made.stop()
            living.remove(made)


def ready_worker(pool: vrampool.Pool, *, but: tuple[str, ...] = ()) -> Any:
    """Wait for a worker that takes trials; return its record."""

    def look() -> Any:
        return [record for record in pool.devices() if record.state == "ready" and record.name not in but]

    return until(look, what="a ready worker", timeout_s=40)[0]


@pytest.hookimpl(wrapper=True)
def show_logs(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the logs of all pools to the report of a test that failed.

    A folder's conftest takes it as `pytest_runtest_makereport`.
    """
    report = yield
    if report.failed:
        for one in [*pools.living, *living]:
            report.sections.append((f"logs of the pool in {one.folder}", one.logs()))
    return report
