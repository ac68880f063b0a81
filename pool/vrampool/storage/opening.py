"""Opening a storage: by its URL, for the first time or again, with errors a person can act on."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage, _CachedStorage
from optuna.study import Study
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from vrampool.errors import SchemaError, StudyError, UnreachableError
from vrampool.storage import schema
from vrampool.storage.address import Address, parse_address
from vrampool.storage.database import PoolDatabase
from vrampool.storage.faults import describe_fault
from vrampool.storage.locking import arm, reading
from vrampool.storage.pool_storage import PoolStorage
from vrampool.storage.view import StorageView

#: How long a call waits for another writer before it raises `TransientStorageError`.
BUSY_TIMEOUT_S = 60.0


def open_storage(url: str, *, create_schema: bool, busy_timeout_s: float = BUSY_TIMEOUT_S) -> PoolStorage:
    """Open the storage of a pool.

    Args:
        url: "sqlite:///study.db" or "postgresql://user:password@host/database".
        create_schema: Create what is missing. The coordinator and whoever submits do; workers wait for them. Any
            number of processes may do it at once.
        busy_timeout_s: How long a call waits for another writer before it raises `TransientStorageError`.

    Raises:
        StudyError: the URL is of a kind that a pool cannot share.
        SchemaError: not set up yet (and not to be), or set up by another version.
        UnreachableError: the database does not answer, or refuses us.
    """
    address = parse_address(url)
    try:
        return PoolStorage(_open(address, create_schema, busy_timeout_s))
    except (exc.SQLAlchemyError, StorageInternalError) as error:
        raise _refusal(address, error) from error
    except (OSError, UnicodeError) as error:  # the folder of a SQLite file
        raise UnreachableError(f"{address.shown} cannot be opened: {error}") from error


def _open(address: Address, create_schema: bool, busy_timeout_s: float) -> PoolDatabase:
    if address.path is not None and not address.path.parent.is_dir():
        raise UnreachableError(f"{address.shown} cannot be opened: the folder {address.path.parent} does not exist")
    kwargs = address.engine_kwargs(busy_timeout_s=busy_timeout_s)
    for key in ("pool_size", "max_overflow"):
        kwargs.pop(key, None)
    engine = arm(sa.create_engine(address.url, **kwargs, poolclass=NullPool), busy_timeout_s=busy_timeout_s)
    if _version(address, engine) is not None:
        # Workers take the word of whoever created the tables: the check would cost each of them 0.1 s.
        return _database(address, busy_timeout_s, create=False, check=create_schema)
    if not create_schema:
        raise SchemaError(f"{address.shown} is not set up yet: start a coordinator first (`vrampool coordinator`)")
    with schema.creation_lock(address, engine):
        if _version(address, engine) is None:
            _refuse_foreign(address, engine)
            if address.is_sqlite:
                schema.use_wal(engine, patience_s=busy_timeout_s)
            database = _database(address, busy_timeout_s, create=True, check=True)
            schema.create_tables(database.engine)
            return database
    return _database(address, busy_timeout_s, create=False, check=True)


def _version(address: Address, engine: sa.Engine) -> str | None:
    if address.path is not None and (not address.path.exists() or not address.path.stat().st_size):
        return None  # connecting would create the file
    with reading():
        version = schema.read_version(engine)
    if version is not None:
        schema.check_version(version, address.shown)
    return version


def _refuse_foreign(address: Address, engine: sa.Engine) -> None:
    """Refuse a database of something else whose tables have the names of Optuna's: the first write to it would fail."""
    if address.path is not None and not address.path.exists():
        return  # connecting would create the file
    with reading():
        inspector = sa.inspect(engine)
        for name in ("studies", "trials"):
            if inspector.has_table(name) and all(item["name"] != "study_id" for item in inspector.get_columns(name)):
                raise StudyError(f"{address.shown} has a table {name!r} that is not Optuna's: name another database")


def _database(address: Address, busy_timeout_s: float, *, create: bool, check: bool) -> PoolDatabase:
    try:
        return PoolDatabase(address, busy_timeout_s=busy_timeout_s, create=create, check=check)
    except RuntimeError as error:  # Optuna's own check of its tables
        raise SchemaError(f"{address.shown}: {error}") from error


def _refusal(address: Address, error: Exception) -> Exception:
    text = describe_fault(error)
    if "file is not a database" in text:
        return StudyError(f"{address.shown} is no SQLite database: name another file")
    if address.is_sqlite:
        remedy = "see that the file and its folder can be written and that nothing holds the file"
    elif "authentication" in text or "password" in text:
        remedy = "correct the user or the password in the storage URL"
    elif 'database "' in text and "does not exist" in text:
        remedy = "create it (createdb), or correct the storage URL"
    elif "permission denied" in text:
        remedy = "grant the user CREATE on the schema, or let its owner start the coordinator once"
    else:
        remedy = "start the server, or correct the storage URL"
    return UnreachableError(f"{address.shown} cannot be used: {text}; {remedy}")


def storage_of(source: Study | BaseStorage) -> PoolStorage:
    """Return the pool's storage under a study or a view.

    Raises:
        StudyError: it was not opened by `open_storage`.
    """
    storage: Any = source._storage if isinstance(source, Study) else source
    while isinstance(storage, StorageView):
        storage = storage.base
    if isinstance(storage, PoolStorage):
        return storage
    raise StudyError(
        f"a {type(storage).__name__} is not a pool's storage: open the study with vrampool.storage.open_storage"
    )


def url_of(source: Study | BaseStorage) -> str | None:
    """Return the URL by which other processes can open a study's storage, with its password; None: they cannot.

    Args:
        source: Any study or storage, one of the user's own too. In-memory and journal storages have no such URL.
    """
    storage: Any = source._storage if isinstance(source, Study) else source
    while isinstance(storage, StorageView):
        storage = storage.base
    if isinstance(storage, _CachedStorage):
        storage = storage._backend
    if not isinstance(storage, RDBStorage):
        return None
    try:
        return parse_address(storage.url).url
    except StudyError:
        return None
