"""A process that is forked from one which has imported what both need: it is there at once, and shares the memory.

Only a process with one thread may fork, and only while it has touched no GPU and opened no connection. The fork gets
rid of what it must not share: signal handlers, descriptors, environment, the name that `ps` shows. It ends by itself,
never by returning into the code of the process that it came from.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

#: Returns an exit code, or raises SystemExit.
Run = Callable[[], int | None]
_LONGEST_NAME = 2000
_forked = False


class Process(Protocol):
    """What is needed of `subprocess.Popen`, and what a fork is."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


def was_forked() -> bool:
    """Whether this process was made by `fork`, and so has everything imported."""
    return _forked


def can_fork() -> bool:
    """Whether this process may fork: it has no second thread whose locks and work a fork would lose."""
    return threading.active_count() == 1


class ForkedProcess:
    """A child of this process that was forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it lives."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it has not come in time, in seconds.
        """
        end_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left_s = None if end_s is None else end_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            life = os.pidfd_open(self.pid)
            try:
                select.select([life], [], [], left_s)
            finally:
                os.close(life)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:  # not waited for, so the number is its own
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    run: Run,
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    output: int | None = None,
    keep: Iterable[int] = (),
) -> ForkedProcess:
    """Fork a process that runs a function and exits. Only where `can_fork`.

    Args:
        run: What it does.
        words: The command that it stands in for; `ps` shows it so.
        env: All of its environment.
        output: Descriptor for its stdout and stderr; None: those of this process.
        keep: Other descriptors that it keeps.
    """
    gc.freeze()  # or its first collection would write to, and so copy, every page of all modules
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Before it has its own handlers a signal to it would do what it is to do here.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _live(run, words, env, output, set(keep), mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return ForkedProcess(pid)


class Prepared:
    """A process that was forked ahead of time and waits to be told what to do; it ends with this one, or when dropped.

    Args:
        run: What it does then.
        words: The command that it stands in for.
        prepare: What it does at once.
    """

    def __init__(self, run: Run, words: Sequence[str], prepare: Callable[[], object] = lambda: None) -> None:
        mine, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            self._process = fork(lambda: _wait(fd, run, prepare), words, env=os.environ, keep=[fd])
        self._order = mine

    def begin(self, env: Mapping[str, str]) -> ForkedProcess | None:
        """Have it run with an environment; None: it is no more."""
        with self._order:
            try:
                self._order.sendall(json.dumps(dict(env)).encode())
            except OSError:
                self._process.wait()
                return None
        return self._process

    def drop(self) -> None:
        """It is not needed."""
        self._order.close()
        self._process.wait()


def _wait(fd: int, run: Run, prepare: Callable[[], object]) -> int | None:
    prepare()
    with socket.socket(fileno=fd) as orders:
        parts = []
        while part := orders.recv(65536):
            parts.append(part)
    if not parts:
        return 0
    _set_environment(json.loads(b"".join(parts)))
    return run()


# ---- in the fork -------------------------------------------------------------------------------------


def _live(
    run: Run, words: Sequence[str], env: Mapping[str, str], output: int | None, keep: set[int], mask: set[int]
) -> NoReturn:
    code = 70
    try:
        global _forked
        _forked = True
        _reset_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.setpgid(0, 0)  # as each process of the pool: Ctrl-C in a terminal is for the owner alone
        _set_descriptors(output, keep)
        _set_environment(env)
        set_command(words)
        sys.argv = list(words)
        for handler in logging.root.handlers[:]:
            logging.root.removeHandler(handler)
        code = _exit_code(run)
        _leave()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # never up into code that was meant for the other process


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _set_descriptors(output: int | None, keep: set[int]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if output is not None:
        os.dup2(output, 1)
        os.dup2(output, 2)
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) > 2 and int(path.name) not in keep:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(path.name))


def _set_environment(env: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(env):
        del os.environ[name]
    os.environ.update(env)


def set_command(words: Sequence[str]) -> None:
    """Have `ps` show another command for this process. Where the kernel does not say where it is kept, nothing happens.

    The words go where the first ones were, and beyond that over the environment with which the process was started: its
    variables must have been set anew by now.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end, variables, variables_end = (int(field) for field in fields[45:49])
    room = (variables_end if variables == end else end) - start
    if not start or room < 3:
        return
    text = " ".join(words).encode()[: min(room - 2, _LONGEST_NAME)] + b"\0"
    ctypes.memset(start, 0, max(end - start, len(text)))
    ctypes.memmove(start, text, len(text))
    if len(text) <= end - start:
        ctypes.memset(end - 1, 0x20, 1)  # no zero at the end: then the kernel shows what is before the first one


def _exit_code(run: Run) -> int:
    try:
        return run() or 0
    except SystemExit as left:
        if isinstance(left.code, int | None):
            return left.code or 0
        print(left.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    return 1


def _leave() -> None:
    """Do what the interpreter does at its end."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
