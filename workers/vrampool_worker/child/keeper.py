"""The keeper: the small process above each trial that owns whatever the trial starts.

A trial may leave data loaders, daemons, whole sessions behind. The keeper is a subreaper, so none of them can get away
from below it, whatever they fork, detach or clear. Its parent, the worker, talks to it over a socket:

- ``t``: ask the trial to stop (SIGTERM). ``k``, or the end of the socket: kill it.
- back, one JSON object a line: ``{"killing": true}`` on a kill; ``{"status": wait status, "rusage": {...}}`` when the
  trial is gone; ``{"gone": true}`` when everything below the keeper is.

The keeper is the fresh interpreter that the worker has started. It forks the trial's process before anything else is
imported or any thread exists, so the trial starts as clean as by an exec, and 8 MiB are all that a keeper holds.
"""

# Not pathlib here: it takes longer to import than all of this may.
# ruff: noqa: PTH106

from __future__ import annotations

import os
import select
import signal
import time
from types import FrameType

from vrampool_worker import process_tree

_BLOCKED = {signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP}
#: Pauses between two rounds over processes that were killed and are not gone yet. One that is stuck in the driver may
#: stay for ever; then so does the keeper, and the worker sees that memory is not coming back.
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.25


def fork_trial(control_fd: int, frames_fd: int, scratch: str, worker: int) -> None:
    """Split this process in two; return in the one that runs the trial. The other one keeps it, and never returns.

    Args:
        control_fd: Socket to the worker; the keeper's.
        frames_fd: Socket to the worker; the trial's.
        scratch: Directory to remove when all is over; it need not exist.
        worker: Process id of the worker, which must still be the parent.
    """
    process_tree.become_subreaper()
    process_tree.die_with_parent(signal.SIGTERM, worker)
    # Neither half may get a signal before it has its own handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    keeper = os.getpid()
    trial = os.fork()
    if trial == 0:
        os.close(control_fd)
        os.setsid()  # a trial that signals its whole group must not reach the keeper
        process_tree.die_with_parent(signal.SIGKILL, keeper)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
        return
    os.close(frames_fd)
    code = 70
    try:
        _Keeper(trial, control_fd).keep(scratch)
        code = 0
    finally:
        os._exit(code)  # never up into code that was meant for the trial


class _Keeper:
    def __init__(self, trial: int, control_fd: int) -> None:
        self._trial = trial
        self._control_fd = control_fd
        self._ended = False  #: the worker is gone, or says so
        self._wake_fd, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # The output pipe must end with the trial and what it started, so the keeper lets go of it.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
        process_tree.set_name("vrampool-keeper")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self._ended = True

    def keep(self, scratch: str) -> None:
        self._wait_for_trial()
        self._end_the_rest()
        self._say('{"gone":true}')
        _remove(scratch)  # after the word: memory is back already, and a directory of checkpoints takes a while

    def _wait_for_trial(self) -> None:
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        poller.register(self._control_fd, select.POLLIN)
        killed = False
        while not self._reap():
            if self._ended and not killed:
                poller.unregister(self._control_fd)  # at its end it is readable for ever
                self._signal(signal.SIGKILL)
                killed = True
            for fd, _ in poller.poll():
                if fd == self._wake_fd:
                    os.read(self._wake_fd, 512)
                elif fd == self._control_fd:
                    self._obey()

    def _obey(self) -> None:
        try:
            orders = os.read(self._control_fd, 64)
        except ConnectionResetError:
            orders = b""
        if not orders:
            self._ended = True
        elif b"k" in orders:
            self._say('{"killing":true}')
            self._signal(signal.SIGKILL)
        elif b"t" in orders:
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        # The number is the trial's as long as this process, its parent, has not waited for it.
        os.kill(self._trial, number)

    def _reap(self) -> bool:
        """Wait for all that has ended; True when the trial was among it."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._trial:
                rss = usage.ru_maxrss * 1024
                self._say(
                    f'{{"status":{status},"rusage":{{"max_rss_bytes":{rss},'
                    f'"user_s":{usage.ru_utime:.6f},"system_s":{usage.ru_stime:.6f}}}}}'
                )
                return True

    def _end_the_rest(self) -> None:
        """Kill and wait until the kernel says that there is no child left, which for a subreaper means nobody below."""
        pause_s = _FIRST_PAUSE_S
        tidy_until_s = time.monotonic() + process_tree.TIDY_S
        me = os.getpid()
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            process_tree.end_all_below(me, tidy_until_s)
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def _say(self, line: str) -> None:
        try:
            os.write(self._control_fd, line.encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):  # the worker is gone; the work is the same
            pass


def _remove(scratch: str) -> None:
    try:
        os.rmdir(scratch)
    except FileNotFoundError:
        return
    except OSError:  # not empty
        import shutil

        shutil.rmtree(scratch, ignore_errors=True)
