"""Pools whose time the test steps, on an empty Valkey."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.stepped_pool import SteppedPool, stepped_pool
from support.surroundings import no_experimental_warnings, own_settings
from support.valkey import connection, valkey

__all__ = ["connection", "no_experimental_warnings", "own_settings", "valkey"]


@pytest.fixture
def stepped(valkey: str, tmp_path: Path) -> Callable[..., AbstractContextManager[SteppedPool]]:
    return lambda **options: stepped_pool(valkey, tmp_path, **options)
