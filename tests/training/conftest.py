"""Fixtures of the training helpers' tests. They run without a GPU; all but the import test need torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from vrampool.training import counting, runtime, shapes


@dataclass
class Told:
    """What the helpers told the process of the trial."""

    steps: int = 0
    ooms_handled: int = 0
    hints: list[str] = field(default_factory=list)

    def runtime(self, **facts: object) -> runtime.TrialRuntime:
        """Return facts of a trial whose hooks write here."""
        return runtime.TrialRuntime(
            count_steps=self._count, note_oom_handled=self._handled, note_hint=self.hints.append, **facts
        )

    def _count(self, steps: int) -> None:
        self.steps += steps

    def _handled(self, count: int) -> None:
        self.ooms_handled += count


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(autouse=True)
def _forget_everything() -> Iterator[None]:
    """Leave neither facts of a trial nor observers in torch behind."""
    yield
    runtime.install(None)
    counting.unwatch_optimizers()
    shapes.unwatch_loaders()


@pytest.fixture
def pool_env() -> Iterator[dict[str, str]]:
    """Variables of a local pool on the CPU, beside whatever pool the user runs; ended with the test."""
    # A folder whose name is short enough for the socket in it.
    with tempfile.TemporaryDirectory(prefix="vp", ignore_cleanup_errors=True) as folder:
        env = {"XDG_STATE_HOME": folder, "VRAMPOOL_GPU": "cpu", "VRAMPOOL_SHARE": "1", "VRAMPOOL_BUDGET": "4GiB"}
        yield env
        # A pool started by `Pool()` outlives its script.
        command = [sys.executable, "-m", "vrampool", "down"]
        subprocess.run(command, env={**os.environ, **env}, capture_output=True, timeout=60)
