"""`vrampool explain`: what each trial was thought to need and what it held, and how good the pool's guess is now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vrampool.cli.manage import running_pool
from vrampool.cli.options import pool_options, take_settings
from vrampool.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vrampool.memory.explaining import Driver, Explanation, ModelState, TrialMemory


_COLUMNS = ("trial", "ended", "predicted", "request", "lease", "peak", "of request", "parameters")
#: Columns of a terminal in which all of them are told.
_WIDE = 110


@click.command()
@click.argument("study_name")
@click.option("--last", type=click.IntRange(min=1), default=30, show_default=True, help="Show so many trials at most.")
@pool_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with every trial.")
def explain(study_name: str, last: int, as_json: bool, **given: Any) -> int:
    """Show the memory of STUDY_NAME's trials: predicted, leased, held; what drives it; how good the model is."""
    from rich.console import Console

    from vrampool.cli.output import to_json
    from vrampool.coordinator.earlier import taught
    from vrampool.measured import trial_memory
    from vrampool.memory.explaining import explain as find
    from vrampool.signing import load_secret

    pool = running_pool(take_settings(given))
    handle = pool.attach(study_name)
    trials = handle.study.get_trials(deepcopy=False)
    signer = load_secret(pool.settings, create=False)
    known = taught(pool.storage, signer, study_name, trials, pool.devices())
    found = find([trial_memory(trial) for trial in trials], known)
    if as_json:
        print(to_json({"study": study_name, "vram": str(handle.spec.vram), **found.to_json()}))
        return 0
    console = Console()
    console.print(trials_table(found.trials[-last:], narrow=console.width < _WIDE))
    if len(found.trials) > last:
        console.print(
            f"the last {last} of {len(found.trials)} trials; --last {len(found.trials)} shows all", style="dim"
        )
    print_model(found, console)
    return 0


def trials_table(trials: tuple[TrialMemory, ...], *, narrow: bool = False) -> Table:
    """Return a table of what trials were thought to need, were granted, and held.

    Args:
        trials: Its rows.
        narrow: Leave out what can be told from the rest, so that the parameters have room.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    dropped = {"request", "of request"} if narrow else set()
    for name in _COLUMNS:
        if name in dropped:
            continue
        left = name in ("ended", "parameters")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "parameters")
    for trial in trials:
        ended = str(trial.end or trial.state.lower()).replace("_", " ")
        colours = {"oom": "red", "infeasible": "yellow"}
        part = trial.peak_bytes / trial.request_bytes if trial.peak_bytes and trial.request_bytes else None
        cells: tuple[Any, ...] = (
            str(trial.number),
            Text(ended, style=colours.get(str(trial.end), "")),
            _size(trial.predicted_bytes),
            _size(trial.request_bytes) if trial.request_bytes else "exclusive" if trial.lease_bytes else "-",
            _size(trial.lease_bytes),
            (">" if trial.at_least and trial.peak_bytes else "") + _size(trial.peak_bytes),
            "-" if part is None else f"{part:.0%}",
            ", ".join(f"{name}={_short(value)}" for name, value in trial.params.items()),
        )
        table.add_row(*(cell for name, cell in zip(_COLUMNS, cells, strict=True) if name not in dropped))
    return table


#: A parameter that changes memory by less is no driver of it.
_MOVES = 1.05
#: With fewer trials the model rests on what is common to networks, more than on this one.
_FEW = 10


def print_model(found: Explanation, console: Console) -> None:
    """Print what drives memory, and how good the model and the requests are."""
    from rich.table import Table

    drivers = [driver for driver in found.drivers if _moves(driver) >= _MOVES]
    if found.drivers and not drivers:
        most = max(map(_moves, found.drivers)) - 1
        console.print(f"\nMemory does not follow any parameter: none moves it by more than {max(most, 0.01):.0%}.")
    if drivers:
        table = Table(box=None, header_style="bold", pad_edge=False, title_justify="left")
        for name in ("parameter", "memory", "factor", "share"):
            table.add_column(name, justify="left" if name in ("parameter", "memory") else "right")
        for driver in drivers:
            table.add_row(driver.name, driver.direction, f"x{driver.factor:.2f}", f"{driver.share:.0%}")
        console.print()
        console.print(table)
        if found.model is not None and found.model.trials < _FEW:
            console.print("With so few trials most of this is assumed, not seen.", style="dim")
    console.print()
    if found.model is None:
        console.print(found.note, markup=False)
    else:
        model = found.model
        console.print(
            f"The model has learned from {model.trials} trials{_more(model)}. Each predicted from "
            f"all others, it is off by {model.median_error:.1%} (median), and would ask for too little for "
            f"{model.under:.1%}. {format_bytes(model.overhead_bytes)} of each trial are overhead.",
            markup=False,
        )
    record = found.record
    if record.median_error is not None:
        console.print(
            f"{record.predicted} trials ran with a prediction, off by {record.median_error:.1%} (median).", markup=False
        )
    if record.over_reserved is not None:
        times = 1 + record.over_reserved
        console.print(f"Over their time {times:.2f} times what trials held was reserved for them.")
    if record.ahead_bytes is not None:
        console.print(
            f"Some held {format_bytes(record.ahead_bytes)} more than others: modules that their process had imported "
            "ahead, and the objective does not need. Leave them out with --preload.",
            markup=False,
        )
    counts = [(record.out_of_memory, "out of memory"), (record.infeasible, "fitted no device")]
    words = [f"{count} {what}" for count, what in counts if count]
    if record.refused:
        words.append(f"{record.refused} proposals refused before they ran, for they fit no device")
    if words:
        console.print("; ".join(words) + ".", markup=False)


def _moves(driver: Driver) -> float:
    """Return by what factor a parameter changes memory, whichever way: 1 or more."""
    return max(driver.factor, 1 / driver.factor)


def _more(model: ModelState) -> str:
    """Say what else of its teachers is worth telling."""
    words = []
    if model.others:
        words.append(f"{model.others} of them of other studies with the same code")
    if model.bounds:
        words.append(f"and {model.bounds} lower bounds")
    return f" ({', '.join(words)})" if words else ""


def _size(number: int | None) -> str:
    return format_bytes(number) if number else "-"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
