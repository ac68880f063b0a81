"""One machine of a pool of several: what is started on it, what ends there, and its death."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from recovery.processes import lives
from support.waiting import until

from vrampool.queueing import WorkerRecord

if TYPE_CHECKING:
    from hosts.many import ManyHosts

LIMIT_S = 60.0
WORKER, COORDINATOR = "worker", "coordinator"


class Host:
    """One machine of the pool, with what was started on it. `ManyHosts` makes it."""

    def __init__(self, pool: ManyHosts, name: str) -> None:
        self._pool = pool
        self.name = name
        self.state_dir = pool.folder / name
        self.state_dir.mkdir()
        self._running: dict[str, psutil.Popen] = {}
        self._options: dict[str, dict[str, Any]] = {}
        self.files: dict[Path, Path] = {}  #: what lies under a path on this host, where it is something else than here
        self.wrapper: list[str] = []  #: words before the command of what is started, such as a container's

    # ---- starting and ending -------------------------------------------------------------------------

    def worker(self, **settings: Any) -> psutil.Popen:
        """Run `vrampool worker`: a supervisor, and below it the worker of the host's CPU."""
        return self._start(WORKER, [], settings)

    def coordinator(self, **settings: Any) -> psutil.Popen:
        return self._start(COORDINATOR, [], settings)

    def _start(self, role: str, words: Sequence[str], settings: dict[str, Any]) -> psutil.Popen:
        self._options[role] = settings
        command = [*self.wrapper, sys.executable, "-m", "vrampool", role, *words]
        with (self.state_dir / f"{role}.log").open("ab") as log:
            self._running[role] = psutil.Popen(
                command,
                env=self._pool.env(self, **settings),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.state_dir,
                preexec_fn=self._pool.enter(self.name),
            )
        return self._running[role]

    def again(self, role: str) -> psutil.Popen:
        """Start what ended with the options that it had."""
        return self._start(role, [], self._options[role])

    def run(self, *words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run `vrampool ...` on this host to its end."""
        return subprocess.run(
            [sys.executable, "-m", "vrampool", *words],
            env=self._pool.env(self, **settings),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=self.state_dir,
            preexec_fn=self._pool.enter(self.name),
        )

    def start_script(self, program: str, *words: str) -> psutil.Popen:
        """Start a user's Python script on this host."""
        with (self.state_dir / "script.log").open("ab") as log:
            return psutil.Popen(
                [sys.executable, "-c", program, *words],
                env=self._pool.env(self),
                stdout=log,
                stderr=log,
                cwd=self.state_dir,
                preexec_fn=self._pool.enter(self.name),
            )

    def roles(self) -> list[str]:
        """Return what runs here: "worker", "coordinator"."""
        return [role for role, process in self._running.items() if process.poll() is None]

    def ended(self) -> list[str]:
        """Return what was started here and does not run any more."""
        return [role for role, process in self._running.items() if process.poll() is not None]

    def runs(self, role: str) -> bool:
        return role in self._running and self._running[role].poll() is None

    def process(self, role: str) -> psutil.Popen:
        return self._running[role]

    def the_worker(self) -> psutil.Process:
        """Return the worker below the supervisor; waits for one that is being started."""

        found = until(self.worker_now, what=f"a worker on {self.name}", timeout_s=LIMIT_S)
        assert found is not None
        return found

    def worker_now(self) -> psutil.Process | None:
        """Return the worker below the supervisor, if there is one in this moment."""
        if self.runs(WORKER):
            for child in _children(self._running[WORKER], recursive=True):
                if "vrampool_worker" in _words(child):
                    return child
        return None

    def die(self, *roles: str) -> list[str]:
        """The power fails: everything on the host is gone at once, or what belongs to these roles.

        Returns what had run.
        """
        roles = roles or tuple(self.roles())
        doomed = [process for role in roles for process in _tree(self._running[role])]
        for process in doomed:  # first stopped, so that nobody has time to clean up after another
            _signal(process, signal.SIGSTOP)
        doomed += [process for role in roles for process in _tree(self._running[role])]
        for process in doomed:
            _signal(process, signal.SIGKILL)
        for role in roles:
            self._running[role].wait(20)
        until(lambda: not any(map(lives, doomed)), what=f"an end of {self.name}")
        return list(roles)

    def kill(self, role: str) -> None:
        """SIGKILL the supervisor or the coordinator."""
        end(self._running[role])

    def ask(self, role: str) -> None:
        """SIGTERM, and no more."""
        _signal(self._running[role], signal.SIGTERM)

    def stop(self, role: str, *, limit_s: float = 30.0) -> int:
        """SIGTERM; return the exit code."""
        self.ask(role)
        return int(self._running[role].wait(limit_s))

    def end(self) -> None:
        for process in self._running.values():
            if process.poll() is None:
                _signal(process, signal.SIGKILL if self.wrapper else signal.SIGTERM)
        for process in self._running.values():
            tree = _tree(process)
            try:
                process.wait(20)
            except psutil.TimeoutExpired:
                for one in tree:
                    _signal(one, signal.SIGKILL)
                process.wait(20)

    # ---- looking -------------------------------------------------------------------------------------

    def log(self, role: str) -> str:
        path = self.state_dir / f"{role}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def says(self, role: str) -> str:
        """Return the state that a process here says it is in: "leading", "standing by", "ready"; "" at first."""
        for path in (self.state_dir / "alive").glob(f"{role}-*.json"):
            return str(json.loads(path.read_text())["state"])
        return ""

    def records(self) -> list[WorkerRecord]:
        """Return what Redis knows of this host's workers."""
        return [record for record in self._pool.pool.devices() if record.host == self._pool.host_name(self.name)]

    def state(self) -> str:
        """Return the state of this host's worker as Redis knows it; "" while it knows none."""
        return next((record.state for record in self.records()), "")

    def await_ready(self, *, but: Sequence[str] = ()) -> WorkerRecord:
        """Wait for a worker of this host that takes trials, other than those named."""

        def look() -> list[WorkerRecord]:
            found = [record for record in self.records() if record.state == "ready" and record.free_bytes > 0]
            return [record for record in found if record.name not in but and record.pid in self._pids()]

        return until(look, what=f"a ready worker on {self.name}", timeout_s=LIMIT_S)[0]

    def _pids(self) -> set[int]:
        return {process.pid for process in _tree(self._running[WORKER])}


def end(process: psutil.Popen) -> None:
    """SIGKILL a process of ours, if it is still there."""
    _signal(process, signal.SIGKILL)
    process.wait(20)


def _tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *_children(process, recursive=True)]


def _children(process: psutil.Process, *, recursive: bool = False) -> list[psutil.Process]:
    try:
        return [child for child in process.children(recursive=recursive) if lives(child)]
    except psutil.NoSuchProcess:
        return []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _signal(process: psutil.Process, signum: int) -> None:
    try:
        process.send_signal(signum)
    except psutil.NoSuchProcess:
        pass
