"""Faults of the database: which of them pass by themselves, and how they are told.

Optuna turns every fault into a `StorageInternalError` that speaks of invalid data. Most are not: a locked file, a
server that restarts, no connection left. Those become a `TransientStorageError`, which says what it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from optuna.exceptions import StorageInternalError
from sqlalchemy import exc

from vrampool.errors import UnreachableError

_T = TypeVar("_T")

#: SQLite result codes that a later call may not meet again.
_PASSING_SQLITE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_PROTOCOL")
#: PostgreSQL's codes, beside those of lost connections: a standby that is about to take over refuses writes.
_PASSING_POSTGRES = ("25006",)
#: First and longest pause between two tries of `keep_trying`, in seconds.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class TransientStorageError(UnreachableError, StorageInternalError):
    """Raised when the database is locked, full, restarting or away. Repeat the same call; the data are not at fault.

    Nothing was written, or, when the answer got lost on its way back, all of it was.
    """


def is_transient(error: BaseException) -> bool:
    """True for a fault after which the same call may succeed later."""
    if isinstance(error, TransientStorageError):
        return True
    cause = error.__cause__ if isinstance(error, StorageInternalError) else error
    if isinstance(cause, exc.TimeoutError):  # all connections of our own pool are in use
        return True
    if not isinstance(cause, exc.DBAPIError):
        return False
    if cause.connection_invalidated:
        return True
    if isinstance(cause.orig, sqlite3.Error):  # without a code it is Python's own: a value that cannot be read
        return getattr(cause.orig, "sqlite_errorname", "").startswith(_PASSING_SQLITE)
    code = getattr(cause.orig, "sqlstate", None) or getattr(cause.orig, "pgcode", None)
    return code in _PASSING_POSTGRES or isinstance(cause, (exc.OperationalError, exc.InterfaceError))


def describe_fault(error: BaseException) -> str:
    """Return the database's own words in one line, with a remedy where there is one."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ is not None else error
    orig = getattr(cause, "orig", None)
    lines = str(orig if orig is not None else cause).strip().splitlines()
    text = lines[0] if lines else type(cause).__name__
    if "too many c" in text or "remaining connection slots" in text:  # "too many clients", "too many connections"
        return f"{text}; raise max_connections, or run fewer workers"
    if "read-only transaction" in text:
        return f"{text}; this is a standby: give the URL of the primary, or wait until it takes over"
    if "database is locked" in text:
        return f"{text} by another process"
    return text


@contextmanager
def transient_faults(database: str) -> Iterator[None]:
    """Turn faults that pass into `TransientStorageError`; let all others through as they are."""
    try:
        yield
    except TransientStorageError:
        raise
    except (StorageInternalError, exc.SQLAlchemyError) as error:
        if not is_transient(error):
            raise
        raise TransientStorageError(f"{database}: {describe_fault(error)}") from error


def keep_trying(call: Callable[[], _T], *, wait: Callable[[float], bool]) -> _T:
    """Make a call until it no longer meets a transient fault.

    Args:
        call: Something that may be made twice: a claim, a tell, an attribute.
        wait: Waits for so many seconds; returns False to give up, and then the fault is raised.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return call()
        except TransientStorageError:
            if not wait(pause_s):
                raise
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
