"""The worker's hold on the process that trials are forked from."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from vrampool_worker.children import orphans
from vrampool_worker.children.launch import Launched, Pipes

_log = logging.getLogger("vrampool.worker")

MODULE = "vrampool_worker.child.forkserver"
#: A fork takes some 10 ms. A server that says nothing for so long hangs, and is ended.
ANSWER_S = 2.0
#: A server that ended is started again, not at once and not for ever.
_PAUSE_S = 10.0
_MOST_STARTS = 5


class ForkServer:
    """Starts trials by forking them from a process that has imported everything. Only the main loop calls it.

    Whenever it cannot, `launch` returns None and the trial is spawned: while the server imports, after it died, and
    where its imports made it unfit to be forked.

    Args:
        environment: All of the children's environment.
        modules: Imported ahead, as far as they are installed.
    """

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str], *, python: str = sys.executable) -> None:
        self._environment = dict(environment)
        self._modules = list(modules)
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._starts = 0
        self._not_before_s = 0.0
        self.ready = False
        self.refusal = ""  #: why trials cannot be forked here at all

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the server; it imports on its own. In the main thread: it dies with the thread that starts it."""
        self._starts += 1
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [self._python, "-P", "-m", MODULE, str(theirs.fileno()), str(os.getpid())]
            try:
                process = subprocess.Popen(
                    [*command, ",".join(self._modules)],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
            except OSError as error:
                mine.close()
                self._pause(f"could not be started: {error}")
                return
        orphans.of_this_process().keep(process.pid)
        self._process, self._link = process, mine

    def launch(self, scratch: str) -> Launched | None:
        """Start a trial's process, in some 10 ms; None when it must be spawned instead."""
        if not self._is_ready():
            return None
        assert self._link is not None
        with Pipes() as pipes:
            try:
                socket.send_fds(self._link, [json.dumps({"scratch": scratch}).encode()], pipes.their_fds)
                pid = int(self._answer(ANSWER_S)["pid"])
                life = os.pidfd_open(pid)
            except (OSError, KeyError, ValueError, TimeoutError) as error:
                self._pause(f"forks no more: {error or type(error).__name__}")
                return None
            return pipes.launched(AdoptedProcess(pid), life)

    def _is_ready(self) -> bool:
        if self._link is None and not self.refusal and self._starts < _MOST_STARTS:
            if time.monotonic() >= self._not_before_s:
                self.start()
            return False
        if self._link is None or self.ready:
            return self.ready
        try:
            news = self._answer(0.0)
        except TimeoutError:
            return False  # still importing
        except (OSError, ValueError) as error:
            self._pause(f"ended while it imported: {error}")
            return False
        self.ready = bool(news.get("ready"))
        if not self.ready:
            self.refusal = str(news.get("why"))
            _log.warning("trials are spawned, not forked: %s", self.refusal)
            self.close()
        else:
            _log.info("trials are forked from process %s, ready after %s s", self.pid, news.get("preload_s"))
        return self.ready

    def _answer(self, wait_s: float) -> dict[str, Any]:
        assert self._link is not None
        readable, _, _ = select.select([self._link], [], [], wait_s)
        if not readable:
            raise TimeoutError(f"no answer within {wait_s:g} s")
        data = self._link.recv(4096)
        if not data:
            raise OSError("it has ended")
        answer: dict[str, Any] = json.loads(data)
        return answer

    def _pause(self, why: str) -> None:
        _log.warning("the process that trials are forked from %s; they are spawned", why)
        self.close()
        self._not_before_s = time.monotonic() + _PAUSE_S

    def close(self) -> None:
        """End the server; trials that were forked from it go on. May be called twice."""
        self.ready = False
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._process is not None:
            self._process.kill()
            orphans.of_this_process().forget(self._process.pid)
            self._process.wait()
            self._process = None


class AdoptedProcess:
    """A keeper that was forked for this process and came up to it: what is needed of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
