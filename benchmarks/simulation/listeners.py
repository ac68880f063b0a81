"""The subscriptions of all workers, each on a connection of its own: what it costs the server to tell them something.

python -m benchmarks.simulation.listeners URL       channels of each worker on standard input, a line for each

Real ones, in a process of their own, which reads what arrives and throws it away. The simulation itself knows who hears
what, and does not wait for it.
"""

from __future__ import annotations

import selectors
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis

_READ_BYTES = 65_536


@contextmanager
def listening(url: str, channels: Sequence[Sequence[str]]) -> Iterator[None]:
    """Have a connection subscribe to each of these groups of channels; they end with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write("".join(" ".join(group) + "\n" for group in channels) + "\n")
        process.stdin.flush()
        assert process.stdout.readline(), "the listeners ended before they listened"
        yield
    finally:
        process.stdin.close()  # it ends by that
        process.wait(20)
        process.stdout.close()


def main(url: str) -> int:
    """Subscribe, say so, and read until standard input ends; return 0."""
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    client = redis.Redis.from_url(url, client_name="vrampool-listener", max_connections=100_000)
    listeners: list[Any] = []
    while words := sys.stdin.readline().split():
        listener = client.pubsub()  # type: ignore[no-untyped-call]
        listener.subscribe(*words)
        for _ in words:
            listener.get_message(timeout=10)
        listeners.append(listener)
        listener.connection._sock.setblocking(False)
        selector.register(listener.connection._sock, selectors.EVENT_READ)
    print("listening", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return 0
            key.fileobj.recv(_READ_BYTES)  # type: ignore[union-attr]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
