"""Long work shows how far it is in a terminal, and is quiet elsewhere."""

from __future__ import annotations

import io

import benchmarks.__main__ as bench
import pytest
from rich.console import Console

from vrampool.cli import report


@pytest.fixture
def error_console(monkeypatch):
    """Have consoles on standard error write where a test can read, as terminals or as files."""

    def make(terminal):
        file = io.StringIO()
        for module in ("rich.console", "benchmarks.__main__"):
            monkeypatch.setattr(
                f"{module}.Console", lambda **_: Console(file=file, force_terminal=terminal, width=80), raising=False
            )
        monkeypatch.setenv("TERM", "xterm")
        return file

    return make


@pytest.mark.parametrize("terminal", [True, False])
def test_a_report_says_which_picture_it_draws(error_console, terminal):
    file = error_console(terminal)
    with report._progress() as on_step:
        on_step("Where memory ran out", 0.5)
    assert ("where memory ran out" in file.getvalue()) == terminal
    assert terminal or file.getvalue() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_benchmarks_say_which_part_is_measured(error_console, terminal):
    file = error_console(terminal)
    with bench.progress() as on_part:
        on_part("footprint (1 of 2)")
        on_part("handover (2 of 2)")
    assert ("footprint (1 of 2)" in file.getvalue() and "handover (2 of 2)" in file.getvalue()) == terminal
    assert terminal or file.getvalue() == ""
