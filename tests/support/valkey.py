"""A real Valkey for tests: one server per test process, an empty one for each test.

A folder's conftest.py makes the fixtures known: ``from support.valkey import connection, pool, valkey  # noqa: F401``.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from vrampool.local.embedded import EmbeddedValkey
from vrampool.messages import Ticket
from vrampool.queueing import connect
from vrampool.signing import Signer

SIGNER = Signer(b"a secret for tests only, 32 bytes")


@functools.cache
def server() -> EmbeddedValkey:
    """Return the one server of this test process. It ends with the process, whatever ends that."""
    home = Path(tempfile.mkdtemp(prefix="vp-"))
    started = EmbeddedValkey(home).start()

    def end() -> None:
        started.stop()
        shutil.rmtree(home, ignore_errors=True)

    atexit.register(end)
    return started


@pytest.fixture
def valkey() -> str:
    """The URL of an empty server."""
    url = server().url
    client = redis.Redis.from_url(url)
    client.flushall()
    client.config_resetstat()
    client.close()
    return url


@pytest.fixture
def connection(valkey: str) -> Iterator[redis.Redis]:
    """A connection to an empty server."""
    client = connect(valkey, role="test")
    yield client
    client.close()


@pytest.fixture
def pool() -> str:
    """A pool's name that no other test uses."""
    return f"pool-{uuid.uuid4().hex[:8]}"


def until(condition: Callable[[], Any], *, timeout_s: float = 20.0, what: str = "the condition") -> Any:
    """Return the first true value of `condition`, looking again and again; fail when none comes in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not come true within {timeout_s} s")
        time.sleep(0.01)


def ticket(pool: str, number: int, vram_bytes: int | None = 1_000, *, submission_id: str = "sub1") -> Ticket:
    """Return the ticket of a trial."""
    return Ticket(
        pool=pool,
        study_name="digits",
        submission_id=submission_id,
        number=number,
        trial_id=100 + number,
        vram_bytes=vram_bytes,
    )


@dataclass
class RoundTrips:
    """Counts what a connection sends."""

    count: int = 0


def count_round_trips(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> RoundTrips:
    """Count the round trips of all connections of the client's pool from now on."""
    trips = RoundTrips()
    kind = client.connection_pool.connection_class
    send = kind.send_packed_command

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        trips.count += 1
        return send(self, *args, **kwargs)

    monkeypatch.setattr(kind, "send_packed_command", counting)
    return trips
