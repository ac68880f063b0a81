"""`make demo`: a whole study on this machine, with everything started and ended by this one program.

It runs trials of `digits.py` in a pool of its own, shows them live, checks that each child's memory came back, and
draws the memory of the devices over time into demo/memory.png.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import optuna
from rich.console import Console
from rich.table import Table

import vrampool
from vrampool.cli.output import follow, state_text, summary
from vrampool.queueing import History
from vrampool.units import MIB, format_bytes
from vrampool.visualization import plot_memory_timeline

HERE = Path(__file__).resolve().parent
#: What a driver may keep for itself between two children; more than this is memory that did not come back.
TOLERANCE_BYTES = 64 * MIB


def main() -> int:
    """Run the demo. Returns 0 when all went well, 1 when a study or a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--out", type=Path, default=HERE.parent / "demo", help="where the picture and the study go")
    parser.add_argument("--gpu", default="all", help="all, cpu, or indices with commas")
    arguments = parser.parse_args()
    state = arguments.out.resolve() / "state"
    shutil.rmtree(state, ignore_errors=True)
    console = Console()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    started = time.monotonic()
    console.print("[bold]vrampool demo[/bold]: Valkey, SQLite, a coordinator and a worker per device are started ...")
    with vrampool.Pool(state_dir=state, gpu=arguments.gpu) as pool:
        handle = pool.submit(
            f"{HERE / 'digits.py'}:objective", n_trials=arguments.trials, direction="maximize", study_name="digits"
        )
        follow(handle)
        wait_until_released(pool)
        found = summary(handle, wall_s=time.monotonic() - started)
        history = History(pool.connection, pool.settings.pool)
        releases = history.releases("digits")
        samples = [item for device in pool.devices() for item in history.samples(device.device_id)]
    console.print("\nEach trial ran in a process of its own; before and after are its device's memory in use:")
    console.print(trial_table(found["trials"], releases))
    picture = arguments.out / "memory.png"
    plot_memory_timeline(samples, releases, picture)
    return report(console, found, releases, picture, time.monotonic() - started)


def wait_until_released(pool: vrampool.Pool, limit_s: float = 30.0) -> None:
    """Wait until every device has seen the memory of its last child come back."""
    deadline = time.monotonic() + limit_s
    while any(device.running for device in pool.devices()) and time.monotonic() < deadline:
        time.sleep(0.2)


def trial_table(trials: list[dict], releases: list[dict]) -> Table:
    """Return the table of trials: what each asked, was granted and held, and the device before and after it."""
    by_number = {item["number"]: item for item in releases}
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("trial", "state", "accuracy", "request", "lease", "peak", "before", "after", "left", "back in"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    for record in trials:
        release = by_number.get(record["number"], {})
        table.add_row(
            str(record["number"]),
            state_text(record),
            f"{record['value']:.4f}" if record["value"] is not None else "-",
            format_bytes(record["request_bytes"]) if record["request_bytes"] else "all",
            format_bytes(record["lease_bytes"]),
            format_bytes(record["peak_bytes"]),
            format_bytes(release.get("used_before_bytes")),
            format_bytes(release.get("used_after_bytes")),
            format_bytes(release.get("residue_bytes")),
            f"{release['back_s']:.2f} s" if release else "-",
        )
    return table


def report(console: Console, found: dict, releases: list[dict], picture: Path, wall_s: float) -> int:
    """Print how it went; return the exit code."""
    kept = [item for item in releases if (item.get("residue_bytes") or 0) > TOLERANCE_BYTES]
    unseen = {record["number"] for record in found["trials"] if record["pid"]} - {item["number"] for item in releases}
    complete = found["counts"].get("COMPLETE", 0)
    counts = ", ".join(f"{count} {state.lower()}" for state, count in sorted(found["counts"].items()))
    console.print(f"\n{counts} in {wall_s:.0f} s")
    if found["best_value"] is not None:
        params = ", ".join(
            f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in found["best_params"].items()
        )
        console.print(f"best accuracy [bold green]{found['best_value']:.4f}[/bold green] with {params}")
    for line, count in found["failures"].items():
        console.print(f"{count} failed: {line}", style="red", markup=False)
    if kept:
        numbers = ", ".join(str(item["number"]) for item in kept)
        console.print(f"[red]memory did not come back after trial {numbers}[/red]")
    elif unseen:
        console.print(f"[red]no release was seen for trial {', '.join(map(str, sorted(unseen)))}[/red]")
    else:
        console.print(f"the memory of all {len(releases)} children came back")
    console.print(f"memory over time: {picture}")
    return 0 if complete and not kept and not unseen else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except vrampool.VrampoolError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
