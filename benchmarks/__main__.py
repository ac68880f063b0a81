"""Run the benchmarks of this machine: `python -m benchmarks [name ...]`, printed as one table."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from benchmarks import footprint, handover, reports, throughput
from benchmarks.rows import Row, table

PARTS = {
    "footprint": footprint.measure,
    "handover": handover.measure,
    "throughput": throughput.measure,
    "reports": reports.measure,
}


def main() -> int:
    """Measure, print, and return 1 when a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}; default: all")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    console = Console(width=110)
    load = os.getloadavg()[0]
    if load > 0.5:
        console.print(f"[yellow]the machine is not quiet (load {load:.1f}): times will be too long[/yellow]")
    rows: list[Row] = []
    with progress() as on_part:
        for number, name in enumerate(names := list(arguments.parts or PARTS), 1):
            on_part(f"{name} ({number} of {len(names)})")
            rows += PARTS[name]()
    console.print(table(rows, f"{os.cpu_count()} cores, load at the start {load:.1f}"))
    if arguments.json:
        arguments.json.write_text(json.dumps([row.to_json() for row in rows], indent=1))
    return 1 if any(row.kept is False for row in rows) else 0


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show what is being measured, and for how long, where standard error is a terminal; say nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _part: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as shown:
        task: TaskID | None = None

        def begin(part: str) -> None:
            nonlocal task
            if task is not None:
                shown.update(task, total=1, completed=1)  # its clock stands still and stays to be read
            task = shown.add_task(part, total=None)

        yield begin
        if task is not None:
            shown.update(task, total=1, completed=1)


if __name__ == "__main__":
    sys.exit(main())
