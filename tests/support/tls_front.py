"""TLS in front of a server that speaks none: it ends the encryption, and passes on what was inside.

Neither the Valkey nor the PostgreSQL that tests bring along is built with TLS. A client sees no difference: it checks
the certificate, and what it sends over the wire is what this counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

_SSL_REQUEST = struct.pack("!ii", 8, 80877103)
_GSS_REQUEST = struct.pack("!ii", 8, 80877104)


class TlsFront:
    """Listens on a port of the loopback.

    Args:
        context: The server's side, with its certificate.
        target: (host, port) or the path of a unix socket.
        postgres: Clients ask for TLS in PostgreSQL's way first, and are refused without.
    """

    def __init__(self, context: ssl.SSLContext, target: tuple[str, int] | Path, *, postgres: bool = False) -> None:
        self._context = context
        self._target = target
        self._postgres = postgres
        self.encrypted = 0  #: connections that went through
        self.plain = 0  #: connections that wanted no encryption, and were closed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: asyncio.Server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if self._postgres and not await self._agree(reader, writer):
                self.plain += 1
                writer.close()
                return
            try:
                await writer.start_tls(self._context)
            except ssl.SSLError:
                self.plain += 1
                raise
            self.encrypted += 1
            await self._pass_on(reader, writer)
        writer.close()

    async def _agree(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first = await reader.readexactly(8)
        if first == _GSS_REQUEST:
            writer.write(b"N")
            first = await reader.readexactly(8)
        if first != _SSL_REQUEST:
            return False
        writer.write(b"S")
        await writer.drain()
        return True

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(self._target, Path):
            theirs, ours = await asyncio.open_unix_connection(self._target)
        else:
            theirs, ours = await asyncio.open_connection(*self._target)
        await asyncio.gather(_pump(reader, ours), _pump(theirs, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()
