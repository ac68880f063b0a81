"""A pool for all tests that need none of their own, a maker of others, and their logs beside a test that fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import pools
from support.pools import LivePool, PoolMaker

OBJECTIVES = Path(__file__).with_name("objectives.py")


@pytest.fixture(scope="package", autouse=True)
def own_settings() -> Iterator[None]:
    """The developer's own settings stay out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("VRAMPOOL_") or name in ("GPU_MEM_FRACTION", "CUDA_VISIBLE_DEVICES"):
                patch.delenv(name)
        yield


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        for one in pools.living:
            report.sections.append((f"logs of the pool in {one.folder}", one.logs()))
    return report
