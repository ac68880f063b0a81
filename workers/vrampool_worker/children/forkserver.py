"""The worker's hold on the process that trials are forked from."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from vrampool.forking import ForkedProcess
from vrampool_worker.children import orphans
from vrampool_worker.children.importing import Importing
from vrampool_worker.children.intake import OutputIntake
from vrampool_worker.children.launch import Launched, Pipes
from vrampool_worker.children.log import ChildLog

_log = logging.getLogger("vrampool.worker")

MODULE = "vrampool_worker.child.forkserver"
#: A fork takes some 10 ms. A server that says nothing for so long hangs, and is ended.
ANSWER_S = 2.0
#: A server that ended is started again, not at once and not for ever.
_PAUSE_S = 10.0
_MOST_STARTS = 5
#: While the server imports, it is worth waiting for: a trial that is spawned would import the same beside it, and both
#: would take twice as long. Once it has taken so long, something hangs, or the next process finds the files in memory.
IMPORT_S = 30.0
#: Kept of what it prints while it imports: some modules print without end.
_LOG_BYTES = 16 * 1024
_TOLD_BYTES = 2000  # of them in our own log


class ForkServer:
    """Starts trials by forking them from a process that has imported everything. Only the main loop calls it.

    Whenever it cannot, `launch` returns None and the trial is spawned: while the server imports, after it died, and
    where its imports made it unfit to be forked. `imports` says whether waiting for it is better than that.

    Args:
        environment: All of the children's environment.
        modules: Imported ahead, as far as they are installed.
    """

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str], *, python: str = sys.executable) -> None:
        self._environment = dict(environment)
        self._modules = list(modules)
        self._more: list[str] = []  #: modules that it was told of later, and imports now
        self._never: set[str] = set()  #: modules that it may have died of
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._starts = 0
        self._failures = 0
        self._imports_since_s = 0.0
        self._importing: Importing | None = None
        self._output_r: int | None = None  #: the pipe of what it prints, until that is listened to
        self._output: OutputIntake | None = None
        self._printed = ChildLog(_LOG_BYTES)
        self._told_bytes = 0  #: of what it printed
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
        self._output_r, output_w = os.pipe2(os.O_CLOEXEC)
        with theirs, os.fdopen(output_w, "wb") as output:
            command = [self._python, "-P", "-m", MODULE, str(theirs.fileno()), str(os.getpid())]
            try:
                process = subprocess.Popen(
                    [*command, ",".join(self._modules)],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
            except OSError as error:
                mine.close()
                self._pause(f"could not be started: {error}")
                return
        orphans.of_this_process().keep(process.pid)
        self._process, self._link = process, mine
        self._imports_since_s = time.monotonic()
        self._listen()

    def register(self, selector: selectors.BaseSelector) -> None:
        """Join the main loop: it turns as soon as the server is ready, or has died, and is not waited for any more."""
        self._selector = selector
        self._listen()

    def _listen(self) -> None:
        if self._selector is None or self._link is None:
            return
        self._selector.register(self._link, selectors.EVENT_READ, lambda _mask: self._hear())
        if self._output_r is not None:
            self._printed, self._told_bytes = ChildLog(_LOG_BYTES), 0
            self._output = OutputIntake(self._output_r, self._printed, self._selector, lambda _mask: self._read())
            self._output_r = None

    def _read(self) -> None:
        assert self._output is not None
        self._output.read(time.monotonic())

    def _tell_printed(self) -> None:
        """Put the end of what it has printed since the last time into our own log: it may say why an import failed."""
        if self._output is not None:
            self._output.drain()
        news = self._printed.since(self._told_bytes)
        if not news:
            return
        end = news[-1][0] + len(news[-1][1])
        text = b"".join(data for _, data in news)[-_TOLD_BYTES:].decode(errors="replace").strip()
        size = end - self._told_bytes
        self._told_bytes = end
        _log.info("the process that trials are forked from printed %d bytes, last of them:\n%s", size, text)

    def imports(self, now_s: float) -> bool:
        """Whether trials can probably be forked sooner than one that is spawned now would have its imports.

        False for one that takes long or hangs, and for one that died before: it may do so again.
        """
        if self._output is not None and self._output.due_s is not None and now_s >= self._output.due_s:
            self._read()
        if self._importing is not None:
            self._importing.look(now_s)
            if self._importing.hangs:
                return False
        waits = self._link is not None and not self.ready and not self._failures
        return waits and now_s - self._imports_since_s < IMPORT_S

    @property
    def trouble(self) -> str:
        """Return what is wrong with an import of it, in words; empty: nothing."""
        return self._importing.trouble if self._importing is not None else ""

    def include(self, modules: Sequence[str]) -> None:
        """Have the server import what it was not told of when it was started; while it imports, say it again later."""
        news = [name for name in modules if name not in self._modules and name not in self._never]
        if not news or not self.ready or self._link is None:
            return
        try:
            self._link.send(json.dumps({"import": news}).encode())
        except OSError as error:
            self._pause(f"imports no more: {error}")
            return
        self.ready, self._more, self._imports_since_s = False, news, time.monotonic()

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
        if self._link is not None and not self.ready:
            self._hear()
        return self.ready

    def _hear(self) -> None:
        """Take what the server says by itself: that it is ready, or that it is no more."""
        try:
            news = self._answer(0.0)
        except TimeoutError:
            return  # still importing
        except (OSError, ValueError) as error:
            self._pause("has ended" if self.ready else f"ended while it imported: {error}")
            return
        if "importing" in news:
            self._importing = Importing(str(news["importing"]), self.pid or 0, time.monotonic())
            return
        self._importing = None
        self._tell_printed()
        self.ready = bool(news.get("ready"))
        if not self.ready:
            self.refusal = str(news.get("why"))
            _log.warning("trials are spawned, not forked: %s", self.refusal)
            self.close()
            return
        _log.info("trials are forked from process %s, ready after %s s", self.pid, news.get("preload_s"))
        self._modules += self._more
        self._more = []

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
        self._failures += 1
        self._never.update(self._more)
        self._more = []
        self._not_before_s = time.monotonic() + _PAUSE_S

    def close(self) -> None:
        """End the server; trials that were forked from it go on. May be called twice."""
        self.ready = False
        self._importing = None
        with contextlib.suppress(KeyError):  # as below
            self._tell_printed()
            if self._output is not None:
                self._output.close()
        self._output = None
        if self._output_r is not None:
            os.close(self._output_r)
            self._output_r = None
        if self._link is not None:
            if self._selector is not None:
                with contextlib.suppress(KeyError):  # the main loop has ended, and its selector with it
                    self._selector.unregister(self._link)
            self._link.close()
            self._link = None
        if self._process is not None:
            self._process.kill()
            orphans.of_this_process().forget(self._process.pid)
            self._process.wait()
            self._process = None


class AdoptedProcess(ForkedProcess):
    """A keeper that was forked for this process and comes up to it in a moment; until then it is no child of it."""

    def poll(self) -> int | None:
        with contextlib.suppress(ChildProcessError):
            return super().poll()
        return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            super().kill()
