"""Pools whose time the test steps, on an empty Valkey."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import optuna
import pytest
from support.stepped_pool import SteppedPool, stepped_pool
from support.valkey import connection, valkey

__all__ = ["connection", "valkey"]


@pytest.fixture(scope="package", autouse=True)
def own_settings() -> Iterator[None]:
    """The developer's own settings stay out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("VRAMPOOL_"):
                patch.delenv(name)
        yield


@pytest.fixture(autouse=True)
def no_experimental_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


@pytest.fixture
def stepped(valkey: str, tmp_path: Path) -> Callable[..., AbstractContextManager[SteppedPool]]:
    return lambda **options: stepped_pool(valkey, tmp_path, **options)
