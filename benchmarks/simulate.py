"""Simulate a pool of up to 1 000 devices: what a trial costs the coordinator and Redis, and where that ends.

python -m benchmarks.simulate                      all that docs/scale.md shows; takes a while
python -m benchmarks.simulate --devices 300 --trials 2000 --lasts 60 [--past 5000] [--sampler tpe]

Coordinator, queue, ledgers and server are the real ones; time is simulated, and goes on by the CPU time that the
coordinator and the server really take (benchmarks/simulation/pool.py). Needs no device.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from rich.console import Console
from rich.table import Table

from benchmarks.simulation import standing
from benchmarks.simulation.outcome import Outcome, Size
from benchmarks.simulation.picture import cost_by_size, draw
from benchmarks.simulation.pool import SimulatedPool
from vrampool.local.embedded import EmbeddedValkey

#: So many trials end each second where only other things are compared.
_RATE = 5.0
_SHM = Path("/dev/shm")
_PARTS = ("study size", "devices", "load", "load of 1 000", "whole study", "learned")


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; return 0."""
    parser = _parser()
    arguments = parser.parse_args(given)
    if arguments.draw and arguments.png is None:
        parser.error("--draw needs --png")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    console = Console(width=220)
    if arguments.draw:
        seen = [json.loads(path.read_text()) for path in arguments.draw]
        draw({title: outcomes for item in seen for title, outcomes in item.items()}, arguments.png)
        return 0
    load = os.getloadavg()
    if arguments.devices is not None:
        size = Size(
            devices=arguments.devices,
            trials=arguments.trials,
            past=arguments.past,
            lasts_s=arguments.lasts,
            slots=arguments.slots,
            sampler=arguments.sampler,
            requests=arguments.requests,
        )
        parts = {"simulated": [simulate(size, arguments.real)]}
    else:
        parts = _all(console, arguments.part)
    for title, outcomes in parts.items():
        console.print(table(title, outcomes))
    _print_standing(console)
    loads = " ".join(f"{value:.1f}" for value in load)
    console.print(f"{os.cpu_count()} cores, Python {platform.python_version()}, load at the start {loads}")
    found = {title: [to_json(outcome) for outcome in outcomes] for title, outcomes in parts.items()}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))
    if arguments.png is not None:
        draw(found, arguments.png)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=_PARTS, help="only this part of the whole run")
    parser.add_argument("--devices", type=int, help="simulate this pool alone")
    parser.add_argument("--trials", type=int, default=1000, help="to run (default: 1000)")
    parser.add_argument("--past", type=int, default=0, help="trials that the study has already (default: 0)")
    parser.add_argument("--lasts", type=float, default=60.0, help="mean seconds of a trial (default: 60)")
    parser.add_argument("--slots", type=int, default=1, help="trials at once on a device (default: 1)")
    parser.add_argument("--sampler", choices=("random", "tpe"), default="random")
    parser.add_argument(
        "--requests", choices=("declared", "learned"), default="declared", help="learned: from the trials' peaks"
    )
    parser.add_argument("--real", type=float, default=900.0, help="stop after so many real seconds (default: 900)")
    parser.add_argument("--json", type=Path, help="also write what was seen to this file")
    parser.add_argument("--draw", type=Path, nargs="+", help="draw what was written with --json before; needs --png")
    parser.add_argument("--png", type=Path, help="draw the curves of the whole run into this file")
    return parser


def simulate(size: Size, most_s: float = 900.0) -> Outcome:
    """Simulate one pool, for at most so many real seconds."""
    # Where there is room the study lies in memory: the disk of this machine is not what is looked at.
    home = _SHM if _SHM.is_dir() and shutil.disk_usage(_SHM).free > 2 * 1024**3 else None
    with tempfile.TemporaryDirectory(prefix="vp-sim-", dir=home) as folder:
        server = EmbeddedValkey(folder).start()
        try:
            pool = SimulatedPool(size, server.url, Path(folder))
            try:
                return pool.run(most_s)
            finally:
                pool.close()
        finally:
            server.stop()


def _all(console: Console, part: str | None) -> dict[str, list[Outcome]]:
    plain = Size(devices=100, trials=300, lasts_s=100 / _RATE)
    few = Size(devices=30, trials=80, lasts_s=30 / _RATE)
    plans = {
        "study size": [
            replace(few, trials=400),
            replace(few, past=3000),
            replace(few, past=10_000),
            replace(few, sampler="tpe", trials=300),
            replace(few, sampler="tpe", past=3000),
            replace(few, sampler="tpe", past=10_000),
        ],
        "devices": [
            replace(plain, devices=count, trials=max(300, 2 * count), lasts_s=count / _RATE)
            for count in (3, 10, 30, 100, 300, 600, 1000)
        ],
        "load": [replace(few, trials=200, lasts_s=lasts_s) for lasts_s in (20.0, 6.0, 2.0, 1.0, 0.5, 0.25)],
        "load of 1 000": [
            Size(devices=1000, trials=trials, lasts_s=lasts_s)
            for lasts_s, trials in ((100.0, 2000), (50.0, 2500), (25.0, 2500), (12.5, 3000), (6.0, 4000))
        ],
        "whole study": [Size(devices=1000, trials=10_000, lasts_s=60.0)],
        "learned": [
            replace(few, trials=400, slots=4, lasts_s=120 / _RATE, requests="learned"),
            replace(few, trials=400, slots=4, past=10_000, lasts_s=120 / _RATE, requests="learned"),
            Size(devices=100, slots=4, trials=1200, lasts_s=400 / _RATE, requests="learned"),
        ],
    }
    found: dict[str, list[Outcome]] = {}
    for title, sizes in plans.items():
        if part not in (None, title):
            continue
        found[title] = []
        for size in sizes:
            console.print(f"[dim]{title}: {size}[/dim]")
            found[title].append(simulate(size))
    return found


def table(title: str, outcomes: Sequence[Outcome]) -> Table:
    """Return what was seen as a table."""
    drawn = Table(title=title, box=None, header_style="bold")
    columns: tuple[str, ...] = (
        *("devices", "trials", "before", "sampler", "wanted/s", "ran/s", "devices busy", "all full after"),
        *("first look", "CPU ms/trial", "of a core", "longest turn", "trips/trial", "KB/trial"),
        *("questions/trial", "while it fills", "Valkey ms/trial", "of a core"),
    )
    learned = any(outcome.size.requests == "learned" for outcome in outcomes)
    if learned:
        columns += ("out of memory", "fits", "CPU ms/trial of fits", "of a core")
    for column in columns:
        drawn.add_column(column, justify="right")
    for outcome in outcomes:
        size, ended = outcome.size, max(1, outcome.ended)
        trips = {role: outcome.trips.get(role, 0) / ended for role in ("coordinator", "worker")}
        sent = {role: outcome.bytes.get(role, 0) / ended / 1000 for role in ("coordinator", "worker")}
        drawn.add_row(
            f"{size.devices} x {size.slots}",
            f"{outcome.ended}" if outcome.ended == size.trials else f"{outcome.ended} of {size.trials}",
            f"{size.past}",
            size.sampler,
            f"{size.wanted_per_s:.1f}",
            f"{outcome.per_s:.1f}",
            f"{outcome.busy:.0%}",
            f"{outcome.fill_s:.1f} s",
            f"{outcome.first_look_s:.2f} s",
            f"{outcome.cpu_per_trial_s * 1000:.1f}",
            f"{outcome.cpu_s / outcome.elapsed_s:.0%}",
            f"{outcome.longest_turn_s:.2f} s",
            f"{trips['coordinator']:.1f} + {trips['worker']:.1f}",
            f"{sent['coordinator']:.0f} + {sent['worker']:.0f}",
            f"{outcome.questions:.1f}",
            f"{outcome.fill_questions:.1f}",
            f"{outcome.server_s / ended * 1000:.2f}",
            f"{outcome.server_s / outcome.elapsed_s:.1%}",
            *(_of_fits(outcome) if learned else ()),
        )
    return drawn


def _of_fits(outcome: Outcome) -> tuple[str, ...]:
    return (
        f"{outcome.ooms}",
        f"{outcome.fits}",
        f"{outcome.fits_cpu_s / max(1, outcome.ended) * 1000:.1f}",
        f"{outcome.fits_cpu_s / outcome.elapsed_s:.0%}",
    )


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Return what was seen for `--json`; turns are summed up by study size."""
    return {
        "size": outcome.size.__dict__,
        "elapsed_s": outcome.elapsed_s,
        "ended": outcome.ended,
        "ran_per_s": outcome.per_s,
        "busy": outcome.busy,
        "fill_s": outcome.fill_s,
        "cpu_s": outcome.cpu_s,
        "cpu_per_trial_s": outcome.cpu_per_trial_s,
        "idle_look_s": outcome.idle_look_s,
        "first_look_s": outcome.first_look_s,
        "longest_turn_s": outcome.longest_turn_s,
        "turns": len(outcome.turns),
        "trips": outcome.trips,
        "bytes": outcome.bytes,
        "hints": outcome.hints,
        "questions": outcome.questions,
        "fill_questions": outcome.fill_questions,
        "calls_again": outcome.calls_again,
        "ooms": outcome.ooms,
        "fits": outcome.fits,
        "fits_cpu_s": outcome.fits_cpu_s,
        "server_s": outcome.server_s,
        "server_cpu_s": outcome.server_cpu_s,
        "cost_by_size": cost_by_size(outcome),
    }


def _print_standing(console: Console) -> None:
    with tempfile.TemporaryDirectory(prefix="vp-sim-") as folder:
        server = EmbeddedValkey(folder).start()
        try:
            found = standing.measure(server.url)
        finally:
            server.stop()
    console.print(
        f"a device with one trial, whether any ends on it or not: {found.trips:.1f} round trips, "
        f"{found.bytes / 1000:.1f} KB and {found.server_s * 1000:.2f} ms of Valkey's time each second"
    )


if __name__ == "__main__":
    sys.exit(main())
