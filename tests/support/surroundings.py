"""What keeps a developer's own surroundings out of the tests; a folder's conftest.py imports what it wants of it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import optuna
import pytest

#: Read by the pool or by what it starts, beside its own variables.
_FOREIGN = ("GPU_MEM_FRACTION", "CUDA_VISIBLE_DEVICES", "NOTIFY_SOCKET")


@pytest.fixture(scope="package", autouse=True)
def own_settings() -> Iterator[None]:
    """The developer's own settings stay out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("VRAMPOOL_") or name in _FOREIGN:
                patch.delenv(name)
        yield


@pytest.fixture(scope="package", autouse=True)
def quiet_optuna() -> Iterator[None]:
    """Optuna's lines stay out of the tests' output."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture(autouse=True)
def no_experimental_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
