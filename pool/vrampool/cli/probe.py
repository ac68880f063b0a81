"""`vrampool probe`: what an objective needs at most, before a study of it is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vrampool.cli.options import device_options, pool_options, say_what_is_ignored, take_settings
from vrampool.errors import InputError
from vrampool.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vrampool.probing import Findings


@click.command()
@click.argument("objective")
@click.option("--runs", type=int, default=10, show_default=True, help="Trials at corners, at most.")
@click.option("--reports", type=int, default=2, show_default=True, help="A trial ends after so many reports.")
@click.option(
    "--corner-timeout",
    "corner_s",
    type=float,
    default=120.0,
    show_default=True,
    metavar="S",
    help="Or so many seconds.",
)
@click.option("--direction", "directions", metavar="D", multiple=True, help="As in `vrampool run`.")
@click.option("--env", multiple=True, metavar="K=V", help="A variable for the trials' processes.")
@click.option("--workdir", metavar="DIR", help="Working directory of the trials.")
@pool_options
@device_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def probe(as_json: bool, **given: Any) -> int:
    """Find what OBJECTIVE needs at most, how many trials fit side by side, and what to change where one does not fit.

    Runs a few short trials at the corners of the search space, each alone on a device, in a study of their own. Exits
    with 1 when a corner fits nowhere.
    """
    from optuna import logging as optuna_logging
    from rich.console import Console

    from vrampool.cli.output import to_json
    from vrampool.cli.run import _make_pool
    from vrampool.probing import probe as find
    from vrampool.probing.progress import shown

    optuna_logging.set_verbosity(optuna_logging.WARNING)
    settings = take_settings(given)
    variables = {}
    for text in given.pop("env"):
        name, sep, value = text.partition("=")
        if not sep or not name:
            raise InputError(f"--env {text!r} is not NAME=VALUE")
        variables[name] = value
    options = {"env": variables, "directions": list(given.pop("directions")) or None, "workdir": given.pop("workdir")}
    pool = _make_pool(settings)
    pool.check(given["objective"], **options)  # a slip in the command line shows before a pool is started
    with pool:
        say_what_is_ignored(pool.local)
        with shown() as on_look:
            found = find(pool, **given, **options, on_look=on_look)
    if as_json:
        print(to_json(found.to_json()))
    else:
        print_findings(found, Console())
    return 0 if found.fits and found.conclusive else 1


def print_findings(found: Findings, console: Console) -> None:
    """Print the runs, the devices, and what to change."""
    console.print(_runs_table(found))
    console.print()
    console.print(_rooms_table(found))
    console.print()
    for effect in found.corners.effects:
        if effect.rescues:
            words = f"with {effect.name}={effect.best} instead of {effect.worst} the largest corner fits"
            console.print(f"{effect.name}: {words}", markup=False, highlight=False)
        elif effect.factor is not None and effect.factor >= 1.05:
            words = f"{effect.factor:.2f} times the memory at {effect.worst} than at {effect.best}"
            console.print(f"{effect.name}: {words}", markup=False, highlight=False)
    for note in found.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    if found.advice:
        console.print("\nA corner fits no device. What to change:", style="bold")
        for number, item in enumerate(found.advice, 1):
            helper = f" ({item.helper})" if item.helper else ""
            console.print(f"  {number}. {item.what}{helper}", markup=False, highlight=False, soft_wrap=True)
            if item.example:
                console.print(f"     {item.example}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{len(found.runs)} trials in {found.wall_s:.0f} s, kept as study {found.study}; later ones learn from them.",
        style="dim",
        markup=False,
        highlight=False,
    )


def _runs_table(found: Findings) -> Table:
    from rich.table import Table
    from rich.text import Text

    from vrampool.probing.findings import describe

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("trial", "peak", "overhead", "ended", "corner", "parameters"):
        table.add_column(name, justify="right" if name in ("trial", "peak", "overhead") else "left")
    colours = {"does not fit": "red", "failed": "yellow"}
    for run in found.runs:
        peak = "-" if run.peak_bytes is None else format_bytes(run.peak_bytes)
        table.add_row(
            str(run.number),
            (">" if run.end in ("does not fit", "not whole") and run.peak_bytes else "") + peak,
            format_bytes(run.overhead_bytes) if run.overhead_bytes else "-",
            Text(run.end, style=colours.get(run.end, "")),
            run.corner,
            describe(run.params),
        )
    return table


def _rooms_table(found: Findings) -> Table:
    from rich.table import Table

    largest = found.largest
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("device", "budget", "largest that fits", "at once", "together", "at once, typical"):
        table.add_column(name, justify="left" if name == "device" else "right")
    for room in found.rooms:
        table.add_row(
            room.device,
            format_bytes(room.budget_bytes),
            "-" if largest is None else format_bytes(largest.peak_bytes),
            str(room.of_largest),
            format_bytes(room.total_bytes) if room.total_bytes else "-",
            str(room.of_typical),
        )
    return table
