"""Serving the page: the port, the server, and its end."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from vrampool.dashboard.app import Dashboard
from vrampool.errors import InputError

PORT = 8765
_WAYS_OUT = {
    errno.EADDRINUSE: "is taken: choose another with --port, or --port 0 for any that is free",
    errno.EACCES: "needs root's rights: choose one above 1023 with --port",
    errno.EADDRNOTAVAIL: "is no address of this machine: give --host one of its own, or 0.0.0.0 for all",
}


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        InputError: it cannot be had; the text says what to do.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"--port must be between 0 and 65535, not {port}")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise InputError(f"--host {host!r} is no address of this machine") from None
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        what = f"port {port} on {host}" if error.errno != errno.EADDRNOTAVAIL else f"--host {host!r}"
        way_out = _WAYS_OUT.get(error.errno or 0, f"cannot be used: {os.strerror(error.errno or 0)}")
        raise InputError(f"{what} {way_out}") from None
    listener.set_inheritable(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the URL under which a listening socket is reached from this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - it is read here, not bound
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class Server(uvicorn.Server):
    """uvicorn, ending when asked to: pages that are open would hold it for ever."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        options: dict[str, Any] = {
            "log_level": "warning",
            "access_log": False,
            "server_header": False,
            "lifespan": "on",
            "timeout_graceful_shutdown": 3,
            "limit_concurrency": 256,
            "timeout_keep_alive": 10,
            "ws": "none",
        }
        super().__init__(uvicorn.Config(dashboard.app, **options))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on the usual signals. uvicorn's own would raise them again when all is done, and that is no failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._dashboard.hub.close()
        await super().shutdown(sockets)


def serve(dashboard: Dashboard, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM."""
    Server(dashboard).run(sockets=[listener])
