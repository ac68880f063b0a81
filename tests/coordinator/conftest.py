"""Quiet Optuna, a Valkey, and no settings of the developer's own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import optuna
import pytest
from support.valkey import valkey

__all__ = ["valkey"]


@pytest.fixture(scope="package", autouse=True)
def own_settings() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("VRAMPOOL_") or name in ("GPU_MEM_FRACTION", "CUDA_VISIBLE_DEVICES"):
                patch.delenv(name)
        yield
    optuna.logging.set_verbosity(before)
