"""Our own tables, beside Optuna's in the same database, and their creation by many processes at once."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy import exc

from vrampool.errors import SchemaError
from vrampool.storage.address import Address

#: Raised by one when a table changes. A database of another version is refused.
SCHEMA_VERSION = "1"
#: Advisory lock of PostgreSQL under which tables are made: any number that nobody else uses.
_LOCK_KEY = int.from_bytes(b"vrampool", "big")
_NAME = sa.String(512)

metadata = sa.MetaData()

meta = sa.Table(
    "vrampool_meta",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

submissions = sa.Table(
    "vrampool_submissions",
    metadata,
    # SQLite gives out the numbers of deleted rows again unless the column is declared AUTOINCREMENT.
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(128), nullable=False, unique=True),
    sa.Column("study_name", _NAME, nullable=False, index=True),
    sa.Column("spec_text", sa.Text, nullable=False),
    sa.Column("bundle_sha256", sa.String(64), nullable=True),
    sa.Column("state", sa.String(32), nullable=False, index=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("created_at", sa.Float(53), nullable=False),
    sa.Column("updated_at", sa.Float(53), nullable=False),
    sqlite_autoincrement=True,
)

bundles = sa.Table(
    "vrampool_bundles",
    metadata,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("signature", sa.Text, nullable=False),
    sa.Column("created_at", sa.Float(53), nullable=False),
)

points = sa.Table(
    "vrampool_points",
    metadata,
    sa.Column("study_name", _NAME, primary_key=True),
    sa.Column("point_sha256", sa.String(64), primary_key=True),
    sa.Column("submission_id", sa.String(128), nullable=False),
)


def read_version(engine: sa.Engine) -> str | None:
    """Return the version of our tables; None when they are not there (or not complete: the version comes last)."""
    with engine.connect() as connection:
        try:
            return connection.scalar(sa.select(meta.c.value).where(meta.c.key == "schema"))
        except exc.ProgrammingError:  # PostgreSQL: undefined table
            return None
        except exc.OperationalError as error:
            if "no such table" in str(error.orig):
                return None
            raise


def check_version(version: str, shown: str) -> None:
    """Raise SchemaError for tables of another version than ours."""
    if version != SCHEMA_VERSION:
        raise SchemaError(
            f"{shown} was set up by another version of vrampool (tables of version {version}, this one knows "
            f"{SCHEMA_VERSION}): use the same version everywhere, or another database"
        )


def create_tables(engine: sa.Engine) -> None:
    """Create our tables where they are missing, and write the version. Call it under `creation_lock`."""
    with engine.begin() as connection:
        metadata.create_all(connection)
        if connection.scalar(sa.select(meta.c.value).where(meta.c.key == "schema")) is None:
            connection.execute(meta.insert().values(key="schema", value=SCHEMA_VERSION))


@contextmanager
def creation_lock(address: Address, engine: sa.Engine) -> Iterator[None]:
    """Let one process at a time create tables: Optuna's own creation fails when two do it at once.

    SQLite: the folder is locked (closing a second handle on the database file itself would drop the locks that
    SQLite holds on it). PostgreSQL: an advisory lock, which ends with its transaction whatever happens.
    """
    if address.path is None:
        with engine.begin() as connection:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
            yield
        return
    folder = os.open(address.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def use_wal(engine: sa.Engine, *, patience_s: float) -> None:
    """Switch a SQLite file to write-ahead logging, in which readers and the writer do not wait for each other.

    The switch stays with the file. It needs the file for itself for a moment, and SQLite does not wait for that by
    its own timeout. A file system that cannot do it leaves the old mode, which is slower but as safe.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA journal_mode=WAL").fetchone()
            return
        except Exception as error:
            if "locked" not in str(error) or time.monotonic() >= deadline_s:
                raise exc.OperationalError("PRAGMA journal_mode=WAL", None, error) from error
            time.sleep(0.02)
        finally:
            raw.close()
