"""Long work shows how far it is in a terminal, and is quiet elsewhere."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from types import SimpleNamespace

import benchmarks.__main__ as bench
import pytest
from rich.console import Console
from support.waiting import until

from vrampool.cli import output, report
from vrampool.handle import LOCAL_START_S, ORPHAN_S, Handle, Progress
from vrampool.probing import progress
from vrampool.probing.corners import Run
from vrampool.probing.progress import Look
from vrampool.units import GIB


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


def plain(file):
    """Return what was written, without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())


class PaperHandle:
    """A submission on paper, half of whose trials have ended."""

    study_name = "digits"
    best_trial = SimpleNamespace(value=0.25, number=3)
    study = SimpleNamespace(directions=["minimize"])

    def watch(self):
        yield Progress("open", "", 8, 4, 1, 0)
        yield Progress("done", "", 8, 8, 0, 0)

    def workers(self):
        return []


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_shows_how_far_it_is(monkeypatch, terminal):
    file = io.StringIO()
    monkeypatch.setattr(output, "Console", lambda **_: Console(file=file, force_terminal=terminal, width=80))
    output.follow(PaperHandle())
    assert ("8/8 finished, 0 running, best 0.25 (trial 3)" in plain(file)) == terminal
    assert terminal or file.getvalue() == ""


def test_a_local_pool_that_is_slow_to_start_its_workers_is_no_false_alarm(recwarn):
    handle = object.__new__(Handle)
    handle.is_local, handle._registry = True, SimpleNamespace(workers=list)
    assert not handle._warn_without_worker(ORPHAN_S + 1) and not recwarn.list
    for is_local, waited_s in ((True, LOCAL_START_S + 1), (False, ORPHAN_S + 1)):
        handle.is_local = is_local
        with pytest.warns(UserWarning, match="no worker is running: start one"):
            assert handle._warn_without_worker(waited_s)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_report_says_which_picture_it_draws(error_console, terminal):
    file = error_console(terminal)
    with report._progress() as on_step:
        on_step("Where memory ran out", 0.5)
    assert ("where memory ran out" in file.getvalue()) == terminal
    assert terminal or file.getvalue() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_probe_shows_the_corner_that_runs_with_its_memory_and_keeps_a_line_for_each_that_has_ended(
    error_console, terminal
):
    file = error_console(terminal)
    run = Run(3, "batch at 8", {"batch": 8}, "does not fit", 2 * GIB)
    with progress.shown() as on_look:
        assert (on_look is not None) == terminal, "where nobody looks nothing is made"
        if on_look is None:
            return
        first = Look("corner 2 of at most 10", "batch at 8")
        on_look(first)
        until(lambda: "batch at 8  starts, 0 s" in plain(file), what="the trial that starts")
        on_look(replace(first, held_bytes=GIB, device_bytes=8 * GIB, elapsed_s=4.2, reports=1))
        until(lambda: "holds 1.0 GiB of 8.0 GiB, 4 s, 1 report" in plain(file), what="what it holds")
        assert "does not fit" not in plain(file)
        on_look(replace(first, run=run, elapsed_s=9.0))
    assert "corner 2 of at most 10: batch at 8  does not fit, 2.0 GiB, 9 s\n" in plain(file)


@pytest.mark.parametrize("terminal", [True, False])
def test_benchmarks_say_which_part_is_measured(error_console, terminal):
    file = error_console(terminal)
    with bench.progress() as on_part:
        on_part("footprint (1 of 2)")
        on_part("handover (2 of 2)")
    assert ("footprint (1 of 2)" in file.getvalue() and "handover (2 of 2)" in file.getvalue()) == terminal
    assert terminal or file.getvalue() == ""
