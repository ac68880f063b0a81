"""One pool for all of these tests, and an empty Valkey for those that step through time by themselves."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import optuna
import pytest
from support import pools
from support.pools import LivePool, PoolMaker
from support.stepped_pool import SteppedPool, stepped_pool
from support.valkey import valkey

__all__ = ["valkey"]


@pytest.fixture(scope="package", autouse=True)
def own_settings() -> Iterator[None]:
    """The developer's own settings stay out of the tests, and Optuna's lines out of their output."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("VRAMPOOL_") or name in ("GPU_MEM_FRACTION", "CUDA_VISIBLE_DEVICES"):
                patch.delenv(name)
        yield
    optuna.logging.set_verbosity(before)


@pytest.fixture(autouse=True)
def no_experimental_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


@pytest.fixture(scope="package")
def pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    """The pool that these tests share: four trials at once."""
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("parity"))
    made = maker(spares=2)
    made.device()  # its worker is there
    yield made
    maker.close()


@pytest.fixture
def make_pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolMaker]:
    """Start pools of one's own."""
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("own"))
    yield maker
    maker.close()


@pytest.fixture
def stepped(valkey: str, tmp_path: Path) -> Callable[..., AbstractContextManager[SteppedPool]]:
    """Make a pool whose time the test steps: ``with stepped(slots=4) as pool``."""
    return lambda **options: stepped_pool(valkey, tmp_path, **options)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        for one in pools.living:
            report.sections.append((f"logs of the pool in {one.folder}", one.logs()))
    return report
