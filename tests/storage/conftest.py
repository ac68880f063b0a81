from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from support.postgres import postgres_server, postgres_url

from vrampool.storage import PoolStorage, open_storage

__all__ = ["postgres_server", "postgres_url"]

optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'study.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """URL of an empty database, of each kind."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture
def storage(url: str) -> Iterator[PoolStorage]:
    """A storage that is set up, of each kind."""
    opened = open_storage(url, create_schema=True, busy_timeout_s=20)
    yield opened
    opened.close()
