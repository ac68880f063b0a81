"""Run every way of running trials on every case, one after another, and print what each costs and loses.

python -m benchmarks.peers [--ways "pool,spawn loop"] [--cases noop,torch] [--quick] [--where] [--json FILE]

A way whose packages this interpreter does not have is left out, with the reason. Load of the machine is printed: other
programs make all times longer, and only what was measured in one run should be compared.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from benchmarks.__main__ import progress
from benchmarks.peers import report, tree
from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.driving import quiet_optuna
from benchmarks.peers.running import Result, run
from benchmarks.peers.ways import WAYS, Way
from benchmarks.rows import table
from vrampool.local.embedded import server_binary

T = TypeVar("T")
#: Of the pool, as it is imported here.
PACKAGES = [Path(folder) for name in ("vrampool", "vrampool_worker") for folder in import_module(name).__path__]


def main() -> int:
    """Measure, print, and return 1 when a goal was missed."""
    arguments = _parser().parse_args()
    ways, cases = _chosen(arguments.ways, WAYS), _chosen(arguments.cases, CASES)
    quiet_optuna()
    console = Console(width=200)
    tree.adopt_orphans()
    for folder in (Path(__file__).parent, *PACKAGES):  # what was changed would be compiled by every process anew
        compileall.compile_dir(folder, quiet=2)
    there: list[Way] = []
    for way in ways:
        reason = way.missing()
        if reason is None:
            there.append(way)
        else:
            console.print(f"[yellow]{way.name} is left out: {reason}[/yellow]")
    load = os.getloadavg()
    results = _run_all(there, cases, arguments.quick, arguments.json)
    by_name = {(result.way, result.case): result for result in results}
    console.print(report.costs(by_name))
    if arguments.where:
        console.print(report.where(by_name))
    if any(case.name in report.FAULTS for case in cases):
        console.print(report.losses(by_name))
    rows = report.goals(by_name)
    if rows:
        console.print(table(rows, "the pool's goals"))
    loads = " ".join(f"{value:.1f}" for value in load)
    console.print(f"{os.cpu_count()} cores, load at the start {loads}; {report.noise(results)}")
    return 1 if any(row.kept is False for row in rows) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", help=f"any of {', '.join(WAYS)}, with commas; default: all")
    parser.add_argument("--cases", help=f"any of {', '.join(CASES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer trials")
    parser.add_argument("--where", action="store_true", help="also print where the CPU time went")
    parser.add_argument("--json", type=Path, help="also write what was seen of each run to this file")
    return parser


def _chosen(text: str | None, known: dict[str, T]) -> list[T]:
    """Return what is named; exit with code 2 where a name is wrong."""
    if text is None:
        return list(known.values())
    names = [name.strip() for name in text.split(",")]
    wrong = [name for name in names if name not in known]
    if wrong:
        print(f"there is no {wrong[0]!r}; known: {', '.join(known)}", file=sys.stderr)
        raise SystemExit(2)
    return [known[name] for name in names]


def _run_all(ways: Sequence[Way], cases: Sequence[Case], quick: bool, out: Path | None) -> list[Result]:
    results: list[Result] = []
    server = str(server_binary())
    with progress() as on_part, tempfile.TemporaryDirectory(prefix="vp-peers-") as home:
        for case in cases:
            for way in ways:
                on_part(f"{case.name}: {way.name}")
                folder = Path(home) / f"{len(results)}"
                folder.mkdir()
                results.append(run(way, case, case.quick_trials if quick else case.trials, folder, server))
                if out is not None:
                    out.write_text(json.dumps([result.to_json() for result in results], indent=1))
    return results


if __name__ == "__main__":
    sys.exit(main())
