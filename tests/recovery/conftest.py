"""Pools of one's own for tests that kill their processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from recovery.hardy import HardyPool

MakePool = Callable[..., HardyPool]
living: list[HardyPool] = []


@pytest.fixture(scope="package", autouse=True)
def own_settings() -> Iterator[None]:
    """The developer's own settings stay out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("VRAMPOOL_") or name in ("GPU_MEM_FRACTION", "CUDA_VISIBLE_DEVICES"):
                patch.delenv(name)
        yield


@pytest.fixture
def make_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakePool]:
    """Start pools: ``make_pool(grace_s=1.0)``. Each must end in order after its test, with no process left."""

    def make(**options: Any) -> HardyPool:
        made = HardyPool(tmp_path_factory.mktemp("pool"), **options)
        living.append(made)
        return made

    try:
        yield make
        for made in living:
            made.down()
    finally:
        while living:
            living.pop().destroy()


@pytest.fixture
def pool(make_pool: MakePool) -> HardyPool:
    return make_pool()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        for one in living:
            report.sections.append((f"logs of the pool in {one.folder}", one.logs()))
    return report
