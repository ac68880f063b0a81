"""Pools of one's own for tests of the commands with which people and machines operate them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from support.pools import LivePool, PoolMaker
from support.surroundings import own_settings
from support.valkey import connection, valkey  # noqa: F401
from support.valkey import pool as pool_name  # noqa: F401

__all__ = ["own_settings"]

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def make_pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolMaker]:
    """Start pools of one's own."""
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("pool"))
    yield maker
    maker.close()


@pytest.fixture(scope="package")
def shared_pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("shared"))
    yield maker()
    maker.close()


@pytest.fixture
def pool(shared_pool: LivePool, command: Command) -> Iterator[LivePool]:
    """The pool that tests share; its worker takes trials again before the next one."""
    shared_pool.device()
    yield shared_pool
    if shared_pool.device().state != "ready":
        assert command(shared_pool, "resume").returncode == 0
    shared_pool.clear()


@pytest.fixture
def command() -> Command:
    """Run the command with a pool's state directory."""

    def run(pool: LivePool, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "vrampool", *arguments, "--state-dir", str(pool.state_dir)]
        return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100)

    return run
