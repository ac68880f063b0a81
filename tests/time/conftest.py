"""Pools for tests of time: started by a test, or stepped through by hand; the developer's own settings stay out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.card import baseline_bytes
from support.parts import show_logs as pytest_runtest_makereport
from support.pools import PoolMaker
from support.stepped_pool import SteppedPool, stepped_pool
from support.surroundings import own_settings
from support.valkey import connection, valkey  # noqa: F401

__all__ = ["baseline_bytes", "own_settings", "pytest_runtest_makereport"]


@pytest.fixture
def make_pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolMaker]:
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("pool"))
    yield maker
    maker.close()


@pytest.fixture
def stepped(valkey: str, tmp_path: Path) -> Callable[..., AbstractContextManager[SteppedPool]]:  # noqa: F811
    return lambda **options: stepped_pool(valkey, tmp_path, **options)
