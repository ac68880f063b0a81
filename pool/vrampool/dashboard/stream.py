"""Server-sent events: one message made once goes to all who look, and nobody's slow line holds up another's."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

#: Pages open at once. Each costs a connection and a few kilobytes.
MOST_CLIENTS = 64
#: Messages kept for a client that does not read; with more it is sent everything anew instead.
_BACKLOG = 30
#: Proxies close a connection on which nothing comes for a minute.
KEEP_S = 15.0


def encode(event: str, content: Any) -> bytes:
    """Return one event as it travels."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), dumps(content))


def dumps(content: Any) -> bytes:
    """Return JSON that a browser can read: numbers that JSON does not know become null."""
    try:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(content), separators=(",", ":"), allow_nan=False).encode()


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return content


class Client:
    """One page that is open."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._closed = False
        self.overrun = False  #: it has missed messages

    def put(self, message: bytes) -> None:
        if len(self._messages) >= _BACKLOG:
            self._messages.clear()
            self.overrun = True
        else:
            self._messages.append(message)
        self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    async def stream(self, whole: Callable[[], bytes]) -> AsyncIterator[bytes]:
        """Yield what is to be sent, until the hub closes.

        Args:
            whole: Makes the message with everything; sent first, and again whenever messages were missed.
        """
        yield b"retry: 1000\n\n" + whole()
        while not self._closed:
            if self.overrun:
                self.overrun = False
                yield whole()
            while self._messages:
                yield self._messages.popleft()
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), KEEP_S)
            except TimeoutError:
                yield b": still here\n\n"


class Hub:
    """All pages that are open. Used in the server's event loop, but for `publish_soon`."""

    def __init__(self) -> None:
        self._clients: set[Client] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_first: Callable[[], None] = lambda: None  #: called when somebody looks

    def __len__(self) -> int:
        return len(self._clients)

    def start(self) -> None:
        """Note the event loop; called once in it."""
        self._loop = asyncio.get_running_loop()

    def join(self) -> Client | None:
        """Return a new client, or None when too many look."""
        if len(self._clients) >= MOST_CLIENTS:
            return None
        client = Client()
        self._clients.add(client)
        self.on_first()
        return client

    def leave(self, client: Client) -> None:
        self._clients.discard(client)

    def publish_soon(self, event: str, content: Any) -> None:
        """Send a message to all; from any thread."""
        loop = self._loop
        if loop is not None and self._clients and not loop.is_closed():
            message = encode(event, content)
            loop.call_soon_threadsafe(self._publish, message)

    def _publish(self, message: bytes) -> None:
        for client in self._clients:
            client.put(message)

    def close(self) -> None:
        """End all streams: the server stops."""
        for client in self._clients:
            client.close()
