"""Pools for tests of time: started by a test, or stepped through by hand; the developer's own settings stay out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support import pools
from support.pools import PoolMaker
from support.stepped_pool import SteppedPool, stepped_pool
from support.valkey import valkey  # noqa: F401


@pytest.fixture(scope="package", autouse=True)
def own_settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("VRAMPOOL_") or name in ("GPU_MEM_FRACTION", "CUDA_VISIBLE_DEVICES"):
                patch.delenv(name)
        yield


@pytest.fixture
def make_pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolMaker]:
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("pool"))
    yield maker
    maker.close()


@pytest.fixture
def stepped(valkey: str, tmp_path: Path) -> Callable[..., AbstractContextManager[SteppedPool]]:  # noqa: F811
    return lambda **options: stepped_pool(valkey, tmp_path, **options)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        for one in pools.living:
            report.sections.append((f"logs of the pool in {one.folder}", one.logs()))
    return report
