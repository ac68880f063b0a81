"""One line of the table, and a pool to measure."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

import vrampool

OBJECTIVES = Path(__file__).with_name("objectives.py")


@dataclass(frozen=True)
class Row:
    """A figure, its goal, and whether the goal was kept (None: there is none)."""

    what: str
    measured: str
    goal: str = ""
    kept: bool | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def table(rows: Sequence[Row], title: str) -> Table:
    """Return the rows as a table with goals and verdicts."""
    drawn = Table(title=title, box=None, header_style="bold")
    for column in ("what", "measured", "goal", ""):
        drawn.add_column(column, justify="right" if column in ("measured", "goal") else "left")
    for row in rows:
        verdict = "" if row.kept is None else "[green]kept[/green]" if row.kept else "[red]missed[/red]"
        drawn.add_row(row.what, row.measured, row.goal, verdict)
    return drawn


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@contextmanager
def bench_pool(**settings: Any) -> Iterator[vrampool.Pool]:
    """A pool on the CPU in a directory of its own, warmed up by two trials."""
    with tempfile.TemporaryDirectory(prefix="vrampool-bench-") as folder:
        options = {"gpu": "cpu", "share": True, "budget": "4GiB", "preload": "", "state_dir": Path(folder)} | settings
        with vrampool.Pool(**options) as pool:
            pool.submit(f"{OBJECTIVES}:noop", n_trials=2, vram="64MiB").wait()
            yield pool
