"""MPS as it runs on this host: the processes and folders of the daemon that a pool's worker has started."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil
from support.pools import LivePool
from support.waiting import until

PROGRAM = "nvidia-cuda-mps-control"
GUARD = "vrampool_worker.mps_guard"


@dataclass(frozen=True)
class MpsProcesses:
    """A daemon's guard, its folder, and all that runs below it."""

    worker: int
    guard: psutil.Process
    folder: Path
    below: tuple[psutil.Process, ...]

    @property
    def left(self) -> list[str]:
        """What of it is still there: processes, folder."""
        found = [f"{item.pid} {_words(item)}" for item in (self.guard, *self.below) if _lives(item)]
        return found + ([str(self.folder)] if self.folder.exists() else [])

    def ask(self, order: str) -> list[str]:
        """Give the daemon an order, as `nvidia-cuda-mps-control` does; return the numbers in its answer."""
        program = shutil.which(PROGRAM)
        assert program is not None
        env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(self.folder / "p")}
        done = subprocess.run([program], input=f"{order}\n", text=True, env=env, capture_output=True, timeout=20)
        print(f"{order!r} -> {done.returncode} {done.stdout!r} {done.stderr!r}")
        return [word for word in done.stdout.split() if word.isdigit()]

    def clients(self) -> set[int]:
        """The pids of all its clients."""
        return {int(pid) for server in self.ask("get_server_list") for pid in self.ask(f"get_client_list {server}")}

    def logs(self) -> str:
        """The ends of what daemon and server wrote."""
        parts = []
        for path in sorted((self.folder / "l").glob("*.log")):
            parts.append("\n".join([f"==> {path}", *path.read_text(errors="replace").splitlines()[-40:]]))
        return "\n".join(parts)


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return ""


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def mps_of(pool: LivePool, *, after: int | None = None, timeout_s: float = 60.0) -> MpsProcesses:
    """Wait until MPS is on in the pool's worker, and return its processes.

    Args:
        pool: The pool; it has one worker.
        after: Pid of a worker that was there before and does not count.
        timeout_s: How long to wait.
    """

    def look() -> MpsProcesses | None:
        for record in pool.devices():
            if record.pid != after and record.mps is not None and record.mps.state == "on":
                return _of_worker(record.pid)
        return None

    try:
        return until(look, timeout_s=timeout_s)
    except AssertionError:
        raise AssertionError(f"MPS is not on: {[(item.pid, item.mps) for item in pool.devices()]}") from None


def await_gone(daemon: MpsProcesses, *, limit_s: float = 40.0) -> None:
    """Wait until nothing of a daemon is left."""
    try:
        until(lambda: not daemon.left, timeout_s=limit_s)
    except AssertionError:
        raise AssertionError(f"{limit_s:g} s later there are still {daemon.left}") from None


def _of_worker(worker: int) -> MpsProcesses | None:
    try:
        for process in psutil.Process(worker).children():
            words = process.cmdline()
            if GUARD in words:
                below = tuple(process.children(recursive=True))
                return MpsProcesses(worker, process, Path(words[-1]), below) if below else None
    except psutil.Error:  # it ends while we look
        pass
    return None
