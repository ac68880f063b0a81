"""A probe's progress in a terminal: a line for each trial that has ended, and the one that runs with its memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vrampool.probing.corners import Run
from vrampool.units import format_bytes


@dataclass(frozen=True)
class Look:
    """A trial of a probe, as it was just seen."""

    name: str  #: "dry trial 1 of at most 4", "corner 3 of at most 10"
    corner: str  #: what is special about its parameters, in words
    elapsed_s: float = 0.0  #: since it was asked for
    held_bytes: int | None = None  #: the most it was seen to hold; None: it has not begun
    device_bytes: int | None = None  #: what its device may hold
    reports: int = 0
    run: Run | None = None  #: once it has ended

    @property
    def head(self) -> str:
        """Return which trial it is: "corner 3 of at most 10: batch_size at 32"."""
        return f"{self.name}: {self.corner}"

    @property
    def now(self) -> str:
        """Return what it does now, or how it ended."""
        if self.run is not None:
            peak = "" if self.run.peak_bytes is None else f", {format_bytes(self.run.peak_bytes)}"
            note = f": {self.run.note.splitlines()[0]}" if self.run.end == "failed" and self.run.note else ""
            return f"{self.run.end}{peak}, {self.elapsed_s:.0f} s{note}"
        if self.held_bytes is None:
            return f"starts, {self.elapsed_s:.0f} s"
        of = f" of {format_bytes(self.device_bytes)}" if self.device_bytes else ""
        reports = "" if not self.reports else ", 1 report" if self.reports == 1 else f", {self.reports} reports"
        return f"holds {format_bytes(self.held_bytes)}{of}, {self.elapsed_s:.0f} s{reports}"


@contextmanager
def shown() -> Iterator[Callable[[Look], None] | None]:
    """Show a probe on standard error, if that is a terminal; None where nobody looks."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal or os.environ.get("TERM") == "dumb":
        yield None
        return
    with console.status("") as status:

        def look(now: Look) -> None:
            if now.run is None:
                line = Text.assemble(now.head, "  ", (now.now, "cyan"))
                line.truncate(max(20, console.width - 3), overflow="ellipsis")
                status.update(line)
                return
            style = {"does not fit": "red", "failed": "yellow"}.get(now.run.end, "green")
            console.print(Text.assemble(now.head, "  ", (now.now, style)))

        yield look
    console.print()  # the findings follow
