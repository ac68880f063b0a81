"""What people and scripts read: live progress, the summary, tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vrampool.handle import Handle, Progress
from vrampool.queueing import WorkerRecord
from vrampool.settings import output_path
from vrampool.storage import TransientStorageError
from vrampool.trial_record import trial_record
from vrampool.units import format_bytes


def follow(handle: Handle, *, quiet: bool = False, look: Callable[[], None] = lambda: None) -> None:
    """Wait for the end; show progress where standard error is a terminal, nothing elsewhere.

    Args:
        handle: What to wait for.
        quiet: Show nothing.
        look: Called at each look; what it raises ends the wait.
    """
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        for _ in handle.watch():
            look()
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        for progress in handle.watch():
            look()
            live.update(progress_view(handle, progress, handle.workers()))


def _progress_line(handle: Handle, progress: Progress) -> str:
    wanted = "" if progress.wanted is None else f"/{progress.wanted}"
    best = best_text(handle)
    return f"{handle.study_name}: {progress.finished}{wanted} finished, {progress.running} running{best}"


def best_text(handle: Handle) -> str:
    """Return the best so far, after a comma; empty while nothing is complete."""
    try:
        if len(handle.study.directions) > 1:
            return f", {len(handle.best_trials)} on the Pareto front"
        best = handle.best_trial
    except (ValueError, RuntimeError, TransientStorageError):  # nothing complete yet, or nothing to be read just now
        return ""
    return f", best {best.value:.6g} (trial {best.number})"


def progress_view(handle: Handle, progress: Progress, devices: Iterable[WorkerRecord]) -> RenderableType:
    """Draw the progress: the study, then each device with the memory of every running trial."""
    parts: list[RenderableType] = []
    head = Table.grid(padding=(0, 1))
    head.add_row(
        Text(handle.study_name, style="bold"),
        ProgressBar(total=progress.wanted or max(progress.finished, 1), completed=progress.finished, width=20),
        Text(_progress_line(handle, progress).partition(": ")[2]),
    )
    parts.append(head)
    for device in devices:
        parts.append(device_view(device))
    return Group(*parts)


def device_view(device: WorkerRecord) -> RenderableType:
    """Draw one device and the memory of each trial on it: what it has, of what it was granted."""
    table = Table.grid(padding=(0, 1))
    used = sum(item.measured_bytes or 0 for item in device.running)
    state = "" if device.state == "ready" else f", {device.state}: {device.reason}"
    table.add_row(
        Text("  " + device.device_name[:42], style="cyan", no_wrap=True),
        ProgressBar(total=max(device.budget_bytes, 1), completed=used, width=20),
        Text(f"{format_bytes(used)} of {format_bytes(device.budget_bytes)} budget{state}"),
    )
    for item in device.running:
        lease, measured = item.lease_bytes, item.measured_bytes
        table.add_row(
            Text(f"    trial {item.number}"),
            ProgressBar(total=max(lease, 1), completed=measured or 0, width=20),
            Text(f"{format_bytes(measured)} of {format_bytes(lease)} leased"),
        )
    return table


def summary(handle: Handle, *, wall_s: float) -> dict[str, Any]:
    """Return what `run --json` prints: plain JSON types; bytes, seconds."""
    progress = handle.progress()
    trials = handle.trials
    value: Any = None
    params: Any = None
    try:
        if len(handle.study.directions) == 1:
            value, params = handle.best_value, handle.best_params
        else:
            value = [trial.values for trial in handle.best_trials]
            params = [trial.params for trial in handle.best_trials]
    except ValueError:  # nothing complete
        pass
    return {
        "study": handle.study_name,
        "submission": handle.id,
        "state": str(progress.state),
        "reason": progress.reason,
        "counts": progress.counts,
        "attempts": progress.attempts,
        "best_value": value,
        "best_params": params,
        "failures": handle.failures(),
        "wall_s": round(wall_s, 2),
        "trials": [trial_record(trial) for trial in trials],
    }


def to_json(content: Any) -> str:
    """Write JSON in one line for any parser: numbers that JSON does not know, such as infinity, become their text."""
    return json.dumps(_finite(content), allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return content


def print_summary(found: dict[str, Any], state_dir: Path | None = None) -> None:
    """Print a finished study for people: what came out, the trials, what failed and why.

    Args:
        found: As `summary` returns it.
        state_dir: Of a pool that has ended: no command can ask it for what a trial printed, so its file is named.
    """
    console = Console()
    console.print(trial_table(found["trials"]))
    counts = ", ".join(f"{count} {state.lower()}" for state, count in sorted(found["counts"].items()))
    why = f" ({found['reason']})" if found["reason"] else ""
    told = f": {found['state']}{why}; {counts or 'no trial'} in {found['wall_s']:.1f} s"
    console.print(Text.assemble((found["study"], "bold"), told))  # a name may look like markup
    if found["best_value"] is not None and found["best_params"] is not None:
        if isinstance(found["best_params"], list):
            _print_front(console, found["best_value"], found["best_params"])
        else:
            best = (f"{found['best_value']:.6g}", "bold green")
            console.print(Text.assemble("best value ", best, f" with {_named(found['best_params'])}"))
    print_failures(console, found, state_dir)


def print_failures(console: Console, found: dict[str, Any], state_dir: Path | None = None) -> None:
    """Print what went wrong in a study, and where one reads more."""
    total = sum(found["counts"].values())
    for line, count in found["failures"].items():
        console.print(f"{count} of {total} failed: {line}", style="red", markup=False)
    failed = [record["number"] for record in found["trials"] if record["state"] == "FAIL" and record["pid"]]
    if failed:
        file = None if state_dir is None else output_path(state_dir, found["study"], failed[0])
        where = str(file) if file is not None and file.exists() else f"vrampool logs {found['study']} {failed[0]}"
        console.print(f"what it printed: {where}", style="dim", markup=False, soft_wrap=True)


#: So many trials of a Pareto front are printed; the rest is in the study.
_FRONT = 8


def _print_front(console: Console, values: list[list[float]], params: list[dict[str, Any]]) -> None:
    console.print(f"{len(values)} {'trial' if len(values) == 1 else 'trials'} on the Pareto front")
    for some, chosen in list(zip(values, params, strict=True))[:_FRONT]:
        console.print(f"  {', '.join(f'{value:.6g}' for value in some)} with {_named(chosen)}", markup=False)
    if len(values) > _FRONT:
        console.print(f"  and {len(values) - _FRONT} more: handle.best_trials has them all")


def _named(params: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in params.items())


def trial_table(records: Iterable[dict[str, Any]]) -> Table:
    """Return a table of trials with their memory."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("trial", "state", "value", "request", "lease", "peak", "seconds", "attempt"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    for record in records:
        seconds = record["end"] - record["start"] if record["end"] and record["start"] else None
        table.add_row(
            str(record["number"]),
            state_text(record),
            _short(record["value"]),
            request_text(record),
            format_bytes(record["lease_bytes"]) if record["lease_bytes"] else "-",
            format_bytes(record["peak_bytes"]) if record["peak_bytes"] else "-",
            f"{seconds:.1f}" if seconds is not None else "-",
            str(record["attempt"]),
        )
    return table


def state_text(record: dict[str, Any]) -> Text:
    """Return a trial's state, coloured, with how it ended where that says more."""
    colours = {"COMPLETE": "green", "PRUNED": "yellow", "FAIL": "red", "RUNNING": "cyan"}
    how = record.get("how")
    extra = f" ({how})" if record["state"] == "FAIL" and how and how != "failed" else ""
    return Text(record["state"].lower() + extra, style=colours.get(record["state"], ""))


def request_text(record: dict[str, Any]) -> str:
    """Return a request for people: bytes, or that the trial had the device to itself."""
    if record["request_bytes"]:
        return format_bytes(record["request_bytes"])
    return "exclusive" if record["lease_bytes"] else "-"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        return ", ".join(_short(item) for item in value)
    return "-" if value is None else str(value)
