from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa
from support.postgres import PostgresServer, postgres_server, postgres_url

from vrampool.storage import PoolStorage, open_storage

__all__ = ["postgres_server", "postgres_url"]


@pytest.fixture(autouse=True, scope="session")
def _quiet_optuna() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'study.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """URL of an empty database, of each kind."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


# Creating the tables takes longer than most tests: databases that are set up are copied.


@pytest.fixture(scope="session")
def _sqlite_original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "study.db"
    open_storage(f"sqlite:///{path}", create_schema=True).close()
    return path


@pytest.fixture(scope="session")
def _postgres_original(postgres_server: PostgresServer) -> str:
    url = postgres_server.new_database()
    open_storage(url, create_schema=True).close()
    return str(sa.make_url(url).database)


@pytest.fixture
def ready_sqlite_url(tmp_path: Path, _sqlite_original: Path) -> str:
    """URL of a SQLite file that is set up."""
    shutil.copy(_sqlite_original, tmp_path / "ready.db")
    return f"sqlite:///{tmp_path / 'ready.db'}"


@pytest.fixture
def ready_postgres_url(postgres_server: PostgresServer, _postgres_original: str) -> str:
    """URL of a PostgreSQL database that is set up."""
    return postgres_server.new_database(template=_postgres_original)


@pytest.fixture(params=["sqlite", "postgresql"])
def ready_url(request: pytest.FixtureRequest) -> str:
    """URL of a database that is set up, of each kind."""
    return str(request.getfixturevalue(f"ready_{'sqlite' if request.param == 'sqlite' else 'postgres'}_url"))


@pytest.fixture
def storage(ready_url: str) -> Iterator[PoolStorage]:
    """A storage that is set up, of each kind."""
    opened = open_storage(ready_url, create_schema=False, busy_timeout_s=20)
    yield opened
    opened.close()
