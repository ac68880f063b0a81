"""How transactions begin, and how long they wait for each other.

SQLite: a transaction that writes takes the write lock as it begins (``BEGIN IMMEDIATE``). By default the lock comes
with the first write, after the state was read: two processes then read the same state and both write. A transaction
that only reads takes a snapshot and waits for nobody.

PostgreSQL: waiting for a row ends, and so does a transaction whose process was frozen in the middle of it, or whose
host was cut off.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

#: PostgreSQL: a process that is frozen in the middle of a transaction keeps its locks no longer than this.
FROZEN_LIMIT_S = 60.0
#: PostgreSQL: how the server notices that a client's host is gone. By default it takes two hours, and for so long rows
#: stay locked that a claim or a birth was about to write. Not for sockets of the file system; seconds and milliseconds.
_NOTICE = {
    "tcp_keepalives_idle": 5,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 2,
    "tcp_user_timeout": 9_000,
}

#: `on` is true in a thread while it only reads.
_reading = threading.local()


@contextmanager
def reading() -> Iterator[None]:
    """Declare that this thread only reads until the block ends."""
    before = getattr(_reading, "on", False)
    _reading.on = True
    try:
        yield
    finally:
        _reading.on = before


def arm(engine: sa.Engine, *, busy_timeout_s: float) -> sa.Engine:
    """Make an engine begin its transactions as described above; returns it."""
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        frozen_ms, busy_ms = int(FROZEN_LIMIT_S * 1000), max(1, int(busy_timeout_s * 1000))
        settings = {"lock_timeout": busy_ms, "idle_in_transaction_session_timeout": frozen_ms, **_NOTICE}
        wanted = ", ".join(f"('{name}', '{value}')" for name, value in settings.items())
        # An older server lacks one or the other: it is asked for those it knows.
        statement = (
            "SELECT set_config(wanted.name, wanted.value, false) "
            f"FROM (VALUES {wanted}) AS wanted (name, value) JOIN pg_settings USING (name)"
        )

        def prepare(connection: Any, _record: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute(statement)
            connection.commit()

        event.listen(engine, "connect", prepare)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # Python's own BEGIN comes only before the first write: too late
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN" if getattr(_reading, "on", False) else "BEGIN IMMEDIATE")
