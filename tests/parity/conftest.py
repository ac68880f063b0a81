"""One pool for all of these tests, and an empty Valkey for those that step through time by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.parts import show_logs as pytest_runtest_makereport
from support.pools import LivePool, PoolMaker
from support.stepped_pool import SteppedPool, stepped_pool
from support.surroundings import no_experimental_warnings, own_settings, quiet_optuna
from support.valkey import valkey

__all__ = ["no_experimental_warnings", "own_settings", "pytest_runtest_makereport", "quiet_optuna", "valkey"]


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
