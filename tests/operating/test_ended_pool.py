"""What somebody is told whose pool ended with the command that had started it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vrampool.local.starting import LocalPool
from vrampool.local.state import PoolRecord
from vrampool.settings import load_settings


@pytest.fixture
def gone() -> int:
    """The pid of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("owned", [True, False])
def test_one_that_was_another_commands_says_how_to_go_on(tmp_path, gone, owned):
    record = PoolRecord(gone, 1, "unix:///nowhere", "sqlite:///x", owned, "cpu")
    error = LocalPool(load_settings({"state_dir": tmp_path}, env={}), record).failure()
    assert error is not None and "the local pool has ended" in str(error)
    assert ("`vrampool up` starts a pool that stays" in str(error)) is owned
