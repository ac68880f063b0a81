"""The command `vrampool` as a test calls it: within the test's process, or as a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vrampool.cli import main


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line it printed, read as strict JSON: what a script would do."""
        return json.loads(self.out.strip().splitlines()[-1], parse_constant=_no_constant)

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.out}\n{self.err}"


def _no_constant(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Done:
    """Run a command within this process."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return Done(code, captured.out, captured.err)


def start(
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[str]:
    """Start a command as a program; in a process group of its own, as a shell does."""
    return subprocess.Popen(
        [sys.executable, "-m", "vrampool", *map(str, arguments)],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def finish(process: subprocess.Popen[str], limit_s: float = 60.0) -> Done:
    """Wait for a program; end it when it takes too long."""
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"it did not end within {limit_s:g} s:\n{out}\n{err}") from None
    return Done(process.returncode, out, err)


def run(*arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Done:
    """Run a command as a program."""
    return finish(start(*arguments, env=env, cwd=cwd))
