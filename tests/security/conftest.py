"""One deployment for most of these tests: TLS everywhere, a Redis user for each role, passwords in every URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from recovery.hardy import HardyPool
from security.deployment import Deployment
from support.parts import show_logs as pytest_runtest_makereport
from support.postgres import postgres_server, postgres_url
from support.stepped_pool import SteppedPool, stepped_pool
from support.surroundings import no_experimental_warnings, own_settings
from support.valkey import connection, valkey

__all__ = [
    "connection",
    "no_experimental_warnings",
    "own_settings",
    "postgres_server",
    "postgres_url",
    "pytest_runtest_makereport",
    "valkey",
]


@pytest.fixture(scope="package")
def deployment(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """It has done a day's work in every role when a test sees it, and its processes still run."""
    pytest.importorskip("psycopg")
    with Deployment(tmp_path_factory.mktemp("deployment")) as made:
        made.work()
        yield made


@pytest.fixture(scope="package")
def hardy(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HardyPool]:
    made = HardyPool(tmp_path_factory.mktemp("hardy"), mutants="own_locks", share=False)
    try:
        yield made
        made.down()
    finally:
        made.destroy()


@pytest.fixture
def pool(hardy: HardyPool, tmp_path: Path) -> Iterator[HardyPool]:
    """The pool of all tests that forge something for a worker to take."""
    hardy.begin(tmp_path)
    yield hardy
    hardy.clear()


@pytest.fixture
def stepped(valkey: str, tmp_path: Path) -> Callable[..., AbstractContextManager[SteppedPool]]:
    return lambda **options: stepped_pool(valkey, tmp_path, **options)
