"""Pools of one's own for tests of the commands with which people and machines operate them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from support.pools import LivePool, PoolMaker
from support.valkey import connection, valkey  # noqa: F401
from support.valkey import pool as pool_name  # noqa: F401

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own settings stay out of the tests."""
    for name in list(os.environ):
        if name.startswith("VRAMPOOL_") or name in ("GPU_MEM_FRACTION", "CUDA_VISIBLE_DEVICES", "NOTIFY_SOCKET"):
            monkeypatch.delenv(name)


@pytest.fixture
def make_pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolMaker]:
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("pool"))
    yield maker
    maker.close()


@pytest.fixture
def pool(make_pool: PoolMaker) -> LivePool:
    made = make_pool()
    made.device()  # its worker is there
    return made


@pytest.fixture
def command() -> Command:
    """Run the command with a pool's state directory."""

    def run(pool: LivePool, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "vrampool", *arguments, "--state-dir", str(pool.state_dir)]
        return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100)

    return run
