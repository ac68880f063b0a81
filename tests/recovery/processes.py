"""The processes of a local pool, found by where they stand in its tree, and what is done to them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
from support.waiting import until

from vrampool.local.state import StateDir
from vrampool.settings import Settings

LIMIT_S = 30.0


class Processes:
    """Processes of the pool in a state directory. Every one that was ever seen is remembered: in the end none may live.

    ::

        host ─┬─ watcher ── valkey
              ├─ coordinator
              └─ supervisor ── worker ── keeper ── trial
    """

    def __init__(self, state_dir: Path) -> None:
        self._state = StateDir(Settings(state_dir=state_dir))
        self._seen: set[psutil.Process] = set()

    # ---- finding -------------------------------------------------------------------------------------

    def host(self) -> psutil.Process:
        record = until(self._state.read, what="a record of the pool", timeout_s=LIMIT_S)
        return self._note(psutil.Process(record.pid))

    def watcher(self) -> psutil.Process:
        return self._below(self.host(), "embedded_watch.py")

    def valkey(self) -> psutil.Process:
        return self._below(self.watcher(), "valkey-server")

    def coordinator(self) -> psutil.Process:
        return self._below(self.host(), "coordinator")

    def supervisor(self) -> psutil.Process:
        return self._below(self.host(), "vrampool_worker.supervisor")

    def worker(self) -> psutil.Process:
        return self._below(self.supervisor(), "vrampool_worker")

    def keepers(self) -> list[psutil.Process]:
        """All of them: of trials that run, and of spares."""
        return [self._note(process) for process in _children(self.worker())]

    def keeper_of(self, trial_pid: int) -> psutil.Process:
        parent = psutil.Process(trial_pid).parent()
        assert parent is not None
        return self._note(parent)

    def of(self, role: str) -> psutil.Process:
        """Return the one process of a role, by its name in the picture above."""
        found = getattr(self, role)()
        assert isinstance(found, psutil.Process)
        return found

    def _below(self, parent: psutil.Process, word: str) -> psutil.Process:
        """Wait for the child whose command line ends so; one that was just killed is started again in a moment."""

        def find() -> psutil.Process | None:
            for process in _children(parent):
                if any(part.endswith(word) for part in " ".join(_cmdline(process)).split()):
                    return process
            return None

        return self._note(until(find, what=f"a {word} below process {parent.pid}", timeout_s=LIMIT_S))

    def _note(self, process: psutil.Process) -> psutil.Process:
        self._seen.add(process)
        self._seen.update(_children(process, recursive=True))
        return process

    # ---- doing ---------------------------------------------------------------------------------------

    def kill(self, role: str) -> psutil.Process:
        """SIGKILL the process of a role; return it once it is gone."""
        process = self.of(role)
        process.kill()
        until(lambda: not lives(process), what=f"the end of the {role}", timeout_s=LIMIT_S)
        return process

    def note_all(self) -> list[psutil.Process]:
        """Remember and return every process of the pool that runs now."""
        record = self._state.read()
        if record is None:
            return []
        host = self._note(psutil.Process(record.pid))
        return [host, *_children(host, recursive=True)]

    def remaining(self) -> list[str]:
        """Return what lives of all that was ever seen."""
        return [f"{process.pid} {' '.join(_cmdline(process))}" for process in self._seen if lives(process)]

    def end_all(self) -> None:
        """Kill what remains, by pid and start time."""
        for process in self._seen:
            if lives(process):
                process.kill()


def lives(process: psutil.Process) -> bool:
    """True while the process runs; what was killed and is not waited for yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class frozen:
    """Freeze a process with SIGSTOP for as long as the block lasts."""

    def __init__(self, process: psutil.Process) -> None:
        self.process = process

    def __enter__(self) -> psutil.Process:
        self.process.send_signal(signal.SIGSTOP)
        until(lambda: self.process.status() == psutil.STATUS_STOPPED, what="a frozen process")
        return self.process

    def __exit__(self, *error: object) -> None:
        if lives(self.process):
            os.kill(self.process.pid, signal.SIGCONT)


def _children(process: psutil.Process, *, recursive: bool = False) -> list[psutil.Process]:
    try:
        return [child for child in process.children(recursive=recursive) if lives(child)]
    except psutil.NoSuchProcess:
        return []


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def below(process: psutil.Process) -> list[psutil.Process]:
    """Return its children; none when it has gone."""
    try:
        return list(process.children())
    except psutil.NoSuchProcess:
        return []


def kill(process: psutil.Process | None) -> bool:
    """Kill it; False when there was nobody to kill."""
    if process is None or not lives(process):
        return False
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True
