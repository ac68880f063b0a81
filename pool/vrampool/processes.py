"""A process that is kept running: started, restarted with back-off when it dies, ended with its parent.

The local pool keeps its Valkey, coordinator and worker supervisor so; the supervisor keeps one worker per device.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TypeVar

from vrampool.errors import UnreachableError
from vrampool.forking import Process

_log = logging.getLogger("vrampool.processes")
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_LIBC = ctypes.CDLL(None, use_errno=True)
_T = TypeVar("_T")

#: Tells a process that an earlier one of its kind has died: what that one held may be free in a moment only, and what
#: it worked with may be down too, and comes back.
RESTARTED = "VRAMPOOL_RESTARTED"
#: Tells a process that its Redis is kept by the host of its pool: it was there, and comes back whenever it dies.
EMBEDDED = "VRAMPOOL_EMBEDDED"
#: Pid of the process that keeps this one; it ends with that.
KEEPER = "VRAMPOOL_KEEPER"

#: Exit codes that say a restart would change nothing: wrong input, and a device that is lost.
FINAL_EXIT_CODES = frozenset({2, 3})


def end_with_keeper(env: MutableMapping[str, str] | None = None) -> None:
    """Get a SIGTERM when the process that keeps this one dies, whichever way. Call it first thing.

    A process that nobody keeps (started by hand, or by systemd) goes on as it is.

    Raises:
        SystemExit: the keeper is gone already.
    """
    keeper = (os.environ if env is None else env).pop(KEEPER, "")
    if keeper.isdigit():
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != int(keeper):
            raise SystemExit(1)


def keep_secrets() -> None:
    """Make this process unreadable for others of the same user: no core dump, no ptrace, no /proc/PID/environ or mem.

    The parents hold the pool's credentials, and the objectives they run belong to the same user. What they exec is
    readable again.
    """
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def patiently(call: Callable[[], _T], *, always: bool = False, env: Mapping[str, str] | None = None) -> _T:
    """Make a call that needs Redis or the database; in a process that takes another's place, until it succeeds.

    Whoever starts a pool wants to hear at once what is wrong. Later the same server may be down for a moment, and a
    process that ended for it would not be started again.

    Args:
        call: What is made, and made again.
        always: The server is known to come back: wait for it at the first start too.
        env: Environment to look into; None: the process's own.

    Raises:
        UnreachableError: of the call, where nobody waits.
    """
    always = always or RESTARTED in (os.environ if env is None else env)
    pause_s = 0.1
    while True:
        try:
            return call()
        except UnreachableError as error:
            if not always:
                raise
            _log.warning("%s; tried again in %.1f s", str(error).splitlines()[0], pause_s)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 5.0)


class ServiceManager:
    """systemd, where it started this process with `Type=notify`; elsewhere everything here does nothing.

    Args:
        env: Environment to take the variables out of: what is started below must not speak for us.
    """

    def __init__(self, env: MutableMapping[str, str] | None = None) -> None:
        env = os.environ if env is None else env
        address = env.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
            env.pop(name, None)
        self._is_ready = False

    @property
    def listens(self) -> bool:
        return bool(self._address)

    def alive(self, status: str) -> None:
        """Say that the loop turns, and with the first call that the service is ready. Call it about every second."""
        ready = [] if self._is_ready else ["READY=1"]
        self._is_ready = True
        self._tell(*ready, "WATCHDOG=1", f"STATUS={' '.join(status.split())}")

    def stopping(self) -> None:
        """Say that the end has begun: it may take as long as the trials have to finish."""
        self._tell("STOPPING=1")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
            datagrams.setblocking(False)
            datagrams.sendto("\n".join(lines).encode(), self._address)


class KeptProcess:
    """One process that is started again whenever it dies, later and later, until it is stopped.

    Not thread-safe: one loop owns it and calls `tend` about every second.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        final_exit_codes: frozenset[int] = FINAL_EXIT_CODES,
        first_env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        fork: Callable[[Mapping[str, str], int | None], Process | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._command = list(command)
        self._env = dict(env) if env is not None else None
        self._log = log
        self._final = final_exit_codes
        self._first_env = dict(first_env or {})  #: these, and the descriptors, are for the first start alone
        self._pass_fds = tuple(pass_fds)
        self._fork = fork  #: makes the first one, quicker than the command does, where it can
        self._clock = clock
        self._process: Process | None = None
        self._started_at_s = 0.0
        self._next_at_s = 0.0
        self._failures = 0
        self.exit_code: int | None = None  #: of the last process that ended
        self.restarts = 0
        self.given_up = False  #: ended with a code that a restart would not change

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process now. Its output goes to the log file, or to ours."""
        out = None
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            out = self._log.open("ab")
        env = (dict(os.environ) if self._env is None else self._env) | {KEEPER: str(os.getpid())}
        env |= {RESTARTED: str(self.restarts)} if self.restarts else self._first_env
        try:
            fork, self._fork = self._fork, None
            self._process = fork(env, out.fileno() if out is not None else None) if fork is not None else None
            if self._process is None:
                # Its own process group: Ctrl-C in a terminal is for the owner alone, which then stops all in order.
                self._process = subprocess.Popen(
                    self._command,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    process_group=0,
                    pass_fds=() if self.restarts else self._pass_fds,
                )
        finally:
            if out is not None:
                out.close()
        self._started_at_s = self._clock()

    def tend(self) -> None:
        """Notice an end and start again when it is time."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            self._process = None
            self.exit_code = code
            lived_s = self._clock() - self._started_at_s
            self._failures = 0 if lived_s > 30 else self._failures + 1
            pause_s = 0.0 if self._failures <= 1 else min(0.25 * 2**self._failures, 30.0)
            self._next_at_s = self._clock() + pause_s
            if code in self._final or code == 0:
                self.given_up = True
                return
            _log.warning(
                "%s ended with %s after %.1f s; it is started again in %.1f s", self.name, code, lived_s, pause_s
            )
        if not self.given_up and self._clock() >= self._next_at_s:
            if self.exit_code is not None:
                self.restarts += 1
            self.start()

    def ask_stop(self, signum: int = signal.SIGTERM) -> None:
        """Ask the process to end; do not start it again."""
        self.given_up = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signum)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; kill what does not end in time. True when it ended by itself."""
        self.given_up = True
        if self._process is None:
            return True
        try:
            self.exit_code = self._process.wait(timeout_s)
            return True
        except subprocess.TimeoutExpired:
            _log.warning("%s (pid %s) did not end in %.0f s and is killed", self.name, self._process.pid, timeout_s)
            self._process.kill()
            self.exit_code = self._process.wait()
            return False
        finally:
            self._process = None


def process_start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, or None when there is none with this pid.

    Together with the pid it names one process for good; a pid alone is given out again.
    """
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def is_alive(pid: int, start_time: int | None = None) -> bool:
    """True when the process is there, and is the one that started at `start_time` where that is given.

    One that has ended and that its parent has not waited for is not: a notebook that started a detached pool never
    waits for it.
    """
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return False
    return start_time is None or int(fields[19]) == start_time


def is_stopped(pid: int, start_time: int) -> bool:
    """True when the process is there and was stopped, by a signal or by whoever traces it."""
    fields = _stat(pid)
    return fields is not None and fields[0] in "Tt" and int(fields[19]) == start_time


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on, or None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
