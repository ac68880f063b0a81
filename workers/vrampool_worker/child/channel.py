"""The child's end of the socket to its worker: calls out, replies and orders in."""

from __future__ import annotations

import builtins
import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from vrampool.framing import CHILD_LIMIT_BYTES, FrameReader, encode
from vrampool.messages import ChildFrame
from vrampool_worker.child.stopping import StopGate

_RECV_BYTES = 256 * 1024
#: What a worker may send at once: all trials of a long study, when an objective asks for them.
_WORKER_LIMIT_BYTES = 1024**3


class CallError(RuntimeError):
    """Raised for an error of the worker's side whose class this process does not know."""


class Channel:
    """Frames to and from the worker.

    Until `start` the main thread reads; then a daemon thread does, and ends the process when the worker is gone: there
    is nobody left to report to.
    """

    def __init__(self, frames_fd: int, gate: StopGate) -> None:
        self._fd = frames_fd  # read and written as a file: the socket module is slow to import
        self._gate = gate
        self._reader = FrameReader(_WORKER_LIMIT_BYTES)
        self._early: list[dict[str, Any] | bytes] = []
        self._sending = threading.Lock()
        self._calling = threading.Lock()
        self._numbers = itertools.count(1)
        self._replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._owner = os.getpid()

    def receive(self) -> dict[str, Any] | bytes | None:
        """Return the next frame, or None at the end of the socket. Only before `start`."""
        while not self._early:
            data = os.read(self._fd, _RECV_BYTES)
            if not data:
                return None
            self._early += self._reader.feed(data)
        return self._early.pop(0)

    def start(self, on_order: Callable[[dict[str, Any]], None]) -> None:
        """Hand reading over to a thread; orders (all but replies) go to `on_order`, in that thread."""
        threading.Thread(target=self._read, args=(on_order,), name="vrampool-channel", daemon=True).start()

    def send(self, frame: ChildFrame, **content: Any) -> None:
        """Send one frame, whole. Safe from any thread of this process.

        Raises:
            ValueError: it is larger than the worker takes.
            RuntimeError: called in a forked process.
        """
        self._check_process()
        data = encode({"t": frame, **content})
        if len(data) > CHILD_LIMIT_BYTES:
            raise ValueError(f"{len(data)} bytes are over the limit of {CHILD_LIMIT_BYTES} for one message to the pool")
        with self._gate.hold(), self._sending:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Call the trial that the worker holds, and wait for the answer for as long as it takes.

        Raises:
            Exception: what the call raised there, as the same class where this process has it.
        """
        self._check_process()
        with self._calling:
            number = next(self._numbers)
            self.send(ChildFrame.CALL, id=number, name=name, args=arguments)
            while True:
                reply = self._replies.get()
                if reply.get("id") == number:  # an older one is of a call that a stop has cut short
                    break
        if not reply.get("ok"):
            raise rebuild_error(reply.get("error") or {})
        return reply.get("value")

    def _check_process(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError("a trial can be used only in the process that runs it, not in one forked from it")

    def _read(self, on_order: Callable[[dict[str, Any]], None]) -> None:
        try:
            for frame in self._early:
                self._take(frame, on_order)
            while data := os.read(self._fd, _RECV_BYTES):
                for frame in self._reader.feed(data):
                    self._take(frame, on_order)
        finally:
            os._exit(1)

    def _take(self, frame: dict[str, Any] | bytes, on_order: Callable[[dict[str, Any]], None]) -> None:
        if isinstance(frame, bytes):
            return
        if frame.get("t") == ChildFrame.REPLY:
            self._replies.put(frame)
        else:
            on_order(frame)


def rebuild_error(error: dict[str, Any]) -> Exception:
    """Make an exception of the worker's side again: Python's own, or of a module that is loaded here."""
    name, module_name, text = str(error.get("type")), str(error.get("module")), str(error.get("text"))
    module = builtins if module_name == "builtins" else sys.modules.get(module_name)
    kind = getattr(module, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except Exception:  # its constructor wants something else
            pass
    return CallError(f"{name}: {text}")
