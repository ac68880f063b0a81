"""A Valkey on a port, and on a socket for the tests themselves; it stops, and comes back with or without its data."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import redis
from redis.exceptions import RedisError
from support.waiting import until

from vrampool.local.embedded import server_binary


class HubValkey:
    """One server.

    Args:
        folder: For its socket and data.
        address: Where it listens.
        port: There.
        enter: Called in the server's process before it runs: it enters the host.
    """

    def __init__(self, folder: Path, address: str, port: int, enter: Callable[[], None] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.socket = folder / "v.sock"
        self._command = [str(server_binary()), "--bind", address, "--port", str(port), "--protected-mode", "no"]
        self._command += ["--unixsocket", str(self.socket), "--dir", str(folder)]
        self._command += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
        self._enter = enter or _end_with_parent
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For those who are on the hub."""
        return f"unix://{self.socket}"

    def start(self) -> None:
        with (self.folder / "valkey.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, preexec_fn=self._enter)
        until(self._answers, what="an answer of Valkey")

    def stop(self) -> None:
        """Stop it as a machine does that shuts down: what it was told is kept."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: at most the last second is lost."""
        self._end(signal.SIGKILL)

    def empty(self) -> None:
        """Forget everything, while it is stopped."""
        assert self._process is None
        for path in self.folder.glob("appendonlydir/*"):
            path.unlink()

    def _end(self, signum: int) -> None:
        if self._process is not None:
            self._process.send_signal(signum)
            self._process.wait(20)
            self._process = None

    def _answers(self) -> bool:
        with contextlib.closing(redis.Redis.from_url(self.url)) as client:
            try:
                return bool(client.ping())
            except RedisError:
                return False


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
