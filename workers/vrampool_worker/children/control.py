"""The worker's line to a keeper: orders down, lines back, and the end of the keeper itself."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
from collections.abc import Iterator
from typing import Any

from vrampool_worker.children.intake import OnReady


class ControlIntake:
    """The control socket of a keeper, and a descriptor of its process that is readable when it has ended."""

    def __init__(
        self, control: socket.socket, pidfd: int, selector: selectors.BaseSelector, on_line: OnReady, on_end: OnReady
    ) -> None:
        control.setblocking(False)
        self._socket = control
        self._selector = selector
        self._buffer = b""
        self._listening = True
        self.answered_kill = False
        self._pidfd: int | None = pidfd
        selector.register(control, selectors.EVENT_READ, on_line)
        selector.register(self._pidfd, selectors.EVENT_READ, on_end)

    def order(self, letter: bytes) -> None:
        """Send an order; a keeper that is gone needs none."""
        try:
            self._socket.send(letter)
        except OSError:  # closed, or the keeper is gone
            pass

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield what the keeper has said. Only our own code writes here: a line that is none of it is dropped."""
        while self._listening:
            try:
                data = self._socket.recv(4096)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._stop_listening()
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict):
                self.answered_kill = self.answered_kill or bool(said.get("killing"))
                yield said

    def kill_keeper(self) -> None:
        """SIGKILL the keeper: the trial dies with it, and the rest comes up to the worker."""
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _stop_listening(self) -> None:
        if self._listening:
            self._selector.unregister(self._socket)
            self._listening = False

    def close(self) -> None:
        """Close the socket and the descriptor. May be called twice."""
        self._stop_listening()
        self._socket.close()
        if self._pidfd is not None:
            self._selector.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
