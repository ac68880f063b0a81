"""One pool that the tests kill one after another, and pools of one's own for what would spoil it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from recovery.hardy import HardyPool
from support.surroundings import own_settings
from support.valkey import connection, valkey  # noqa: F401

__all__ = ["own_settings"]

MakePool = Callable[..., HardyPool]
living: list[HardyPool] = []
FAILED = pytest.StashKey[bool]()


class Shared:
    """The pool that tests share. A test that fails takes it along."""

    def __init__(self, make: MakePool) -> None:
        self._make = make
        self._pool: HardyPool | None = None

    def get(self) -> HardyPool:
        if self._pool is None:
            self._pool = self._make()
        return self._pool

    def drop(self) -> None:
        if self._pool is not None:
            living.remove(self._pool)
            self._pool.destroy()
            self._pool = None

    def end(self) -> None:
        """End it in order, if it is there, with no process left."""
        try:
            if self._pool is not None:
                self._pool.down()
        finally:
            self.drop()


@pytest.fixture(scope="package")
def shared(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    def make() -> HardyPool:
        # Its device is its own: its locks lie where other pools of this host do not look.
        living.append(HardyPool(tmp_path_factory.mktemp("shared"), mutants="own_locks", share=False))
        return living[-1]

    found = Shared(make)
    yield found
    found.end()


@pytest.fixture
def pool(shared: Shared, tmp_path: Any, request: pytest.FixtureRequest) -> Iterator[HardyPool]:
    """The pool that tests share: it has survived all that were before."""
    found = shared.get()
    found.begin(tmp_path)
    yield found
    if request.node.stash.get(FAILED, False):
        shared.drop()
    else:
        found.clear()


@pytest.fixture
def make_pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakePool]:
    """Start pools: ``make_pool(share=False)``. Each must end in order after its test, with no process left."""
    made: list[HardyPool] = []

    def make(**options: Any) -> HardyPool:
        made.append(HardyPool(tmp_path_factory.mktemp("pool"), **options))
        living.append(made[-1])
        return made[-1]

    try:
        yield make
        for one in made:
            one.down()
    finally:
        for one in made:
            living.remove(one)
            one.destroy()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
        for one in living:
            report.sections.append((f"logs of the pool in {one.folder}", one.logs()))
    return report
