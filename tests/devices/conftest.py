"""Fake cards seen by the test process itself, and trials that hold memory below a keeper."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
from support.fake_nvml import STATE, FakeNvml

from vrampool_worker.devices import nvml

#: Started as a keeper: it starts one process that holds touched memory, says its pid, and lives until its input ends.
_KEEPER = """
import subprocess, sys
held = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(held.stdout.readline().decode().strip(), flush=True)
sys.stdin.read()
held.kill()
"""
_HOLDER = "import sys, os; held = bytearray(b'x') * {}; print(os.getpid(), flush=True); sys.stdin.read()"


@pytest.fixture
def fake_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """No cards yet; NVML starts anew for each test."""
    monkeypatch.setenv(STATE, "")  # so that it is put back
    fake = FakeNvml(tmp_path)
    fake.preload()
    monkeypatch.setattr(nvml, "_library", nvml._Library())
    yield fake
    with contextlib.suppress(pynvml.NVMLError):  # a test may have left it shut down
        pynvml.nvmlShutdown()


Keep = Callable[[int], tuple[int, int]]


@pytest.fixture
def keep() -> Iterator[Keep]:
    """Start a keeper with a trial that holds so many bytes; returns both pids."""
    keepers: list[subprocess.Popen[bytes]] = []

    def start(held_bytes: int, program: str = _HOLDER) -> tuple[int, int]:
        command = [sys.executable, "-c", _KEEPER, program.format(held_bytes)]
        keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        keepers.append(keeper)
        assert keeper.stdout is not None
        return keeper.pid, int(keeper.stdout.readline())

    yield start
    for keeper in keepers:
        keeper.communicate()
