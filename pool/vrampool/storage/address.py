"""Where a study lives: storage URLs read, refused with a remedy, and shown without their passwords."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from vrampool.errors import StudyError

_REMEDY = "use sqlite:///study.db on one machine, postgresql://user@host/database on many"
#: What libpq is asked for: a pulled cable is noticed within ten seconds, not after the kernel's two hours. That is the
#: time for which a connection may be silent, and after it the time for a new one.
_POSTGRES_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 4,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 2,
    "tcp_user_timeout": 5_000,
}


@dataclass(frozen=True)
class Address:
    """A storage URL that this project can use."""

    url: str  #: complete, with its password; never shown
    shown: str  #: for messages
    path: Path | None  #: SQLite: the file

    @property
    def is_sqlite(self) -> bool:
        return self.path is not None

    def engine_kwargs(self, *, busy_timeout_s: float) -> dict[str, Any]:
        """Return the keyword arguments for SQLAlchemy's `create_engine`."""
        if self.is_sqlite:
            return {"connect_args": {"timeout": busy_timeout_s}}
        # What the user's URL says about the connection wins.
        given = make_url(self.url).query
        defaults = {key: value for key, value in _POSTGRES_DEFAULTS.items() if key not in given}
        return {"pool_pre_ping": True, "pool_size": 1, "max_overflow": 1, "connect_args": defaults}


def parse_address(url: str) -> Address:
    """Read a storage URL. A relative SQLite path becomes absolute, since other processes open it too.

    Raises:
        StudyError: it is no URL, or of a kind that the processes of a pool cannot share.
    """
    try:
        parts = make_url(url)
    except (ArgumentError, ValueError):
        raise StudyError(f"the storage {_shorten(url)!r} is not a database URL: {_REMEDY}") from None
    kind = parts.drivername.partition("+")[0]
    if kind == "sqlite":
        return _sqlite(parts)
    if kind in ("postgresql", "postgres"):
        return _postgres(parts)
    if kind == "redis" or kind.startswith("journal"):
        raise StudyError(f"journal storages are not supported: {_REMEDY}")
    raise StudyError(f"storages of kind {kind!r} are not supported: {_REMEDY}")


def _sqlite(parts: URL) -> Address:
    if not parts.database or ":memory:" in parts.database or parts.query.get("mode") == "memory":
        raise StudyError(f"a study in memory cannot be shared with workers: {_REMEDY}")
    if parts.database.startswith("file:"):
        raise StudyError("SQLite URLs of the form file:... are not supported: use sqlite:////absolute/path.db")
    path = Path(parts.database).expanduser().absolute()
    return Address(url=_text(parts.set(database=str(path))), shown=f"sqlite:///{path}", path=path)


def _postgres(parts: URL) -> Address:
    driver = parts.drivername.partition("+")[2] or ("psycopg" if _installed("psycopg") else "psycopg2")
    if not _installed(driver):
        raise StudyError(f"PostgreSQL needs the driver {driver}: pip install 'vrampool[postgres]'")
    parts = parts.set(drivername=f"postgresql+{driver}")
    secrets = [key for key in parts.query if "password" in key]
    shown = parts.difference_update_query(secrets).render_as_string(hide_password=True)
    return Address(url=_text(parts), shown=shown, path=None)


def _text(parts: URL) -> str:
    return parts.render_as_string(hide_password=False)


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _shorten(url: str) -> str:
    """Show nothing of a broken URL that could be a password."""
    return url.rpartition("@")[2][:80]
