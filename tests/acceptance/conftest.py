"""A pool for all tests that need none of their own, a maker of others, and their logs beside a test that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.card import baseline_bytes
from support.parts import show_logs as pytest_runtest_makereport
from support.pools import LivePool, PoolMaker
from support.surroundings import own_settings

__all__ = ["baseline_bytes", "own_settings", "pytest_runtest_makereport"]

OBJECTIVES = Path(__file__).with_name("objectives.py")


@pytest.fixture(scope="package")
def shared_pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    """It ends with this folder's last test."""
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("shared"))
    yield maker()
    maker.close()


@pytest.fixture
def pool(shared_pool: LivePool) -> Iterator[LivePool]:
    """The pool that most tests share. What a test that failed has left in it is ended before the next one."""
    yield shared_pool
    shared_pool.clear()


@pytest.fixture
def make_pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolMaker]:
    """Start pools of one's own: ``make_pool(budget="400MiB")``."""
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("pool"))
    yield maker
    maker.close()
