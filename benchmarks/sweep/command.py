"""Run the sweep of mixed trials in several ways on one card, and print what each took and lost.

`python -m benchmarks.sweep --out DIR` (or `make bench-sweep`) runs on GPU 0, which counts as a card of 24 GiB: a
ballast process really holds the rest of it. Each trial is first measured alone on the whole card; that is kept in
DIR/calibration.json and used again. Then each way runs the same trials, in a process of its own:

  one            one after another
  fixedN         N at once, whatever they need
  oracle         knows what each needs: refuses what is too large, packs the others to 85 % of the card
  pool           the pool, which knows nothing
  -mps           under NVIDIA's Multi-Process Service; -spawn, -forkserver: how trials start

DIR gets ways.jsonl and attempts.jsonl, a line as each ends, a timeline of each way, and table.md, in which ways that
an earlier run has left in DIR stand too, if they ran the same trials. With --dry all is tiny and on the CPU: it
shows that the program works, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.rows import Row, table
from benchmarks.sweep import calibrating, report
from benchmarks.sweep.ending import adopt_orphans, end_leftovers, exit_on_signals
from benchmarks.sweep.plan import PLAN_VARIABLE, Plan
from benchmarks.sweep.trials import Trial, all_trials, largest, trial_list
from benchmarks.sweep.ways import DEFAULT, DEFAULT_LARGE, way_of
from vrampool.errors import VrampoolError
from vrampool.settings import load_settings
from vrampool.units import GIB

ROOT = Path(__file__).parents[2]
#: Beyond its limit a way has so long to end in order.
_ENDING_S = 60.0
#: With less time left than this no way is begun.
_LEAST_S = 20.0
#: Steps of each trial in a dry run.
_DRY_STEPS = 6


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the goals, and return 1 when one was missed or a way failed, 2 where there is no card."""
    given = _parse(arguments)
    exit_on_signals()
    adopt_orphans()
    if not given.dry and (reason := _obstacle()):
        print(f"error: it needs an NVIDIA GPU with torch: {reason}", file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + given.limit_s
    rows: list[dict[str, Any]] = []
    try:
        with ExitStack() as stack:
            keep = _prepare(given, stack)
            for name in given.ways:
                rows.append(_run_way(name, given, end_s, keep))
                _append(given.out / "ways.jsonl", rows[-1])
    finally:
        end_leftovers()
        judged = _show(_with_earlier(rows, given.out / "ways.jsonl"), given)
    return 1 if any(row.kept is False for row in judged) or any("error" in row for row in rows) else 0


def _with_earlier(rows: Sequence[dict[str, Any]], file: Path) -> list[dict[str, Any]]:
    """Add what earlier runs have written of the same trials, the newest of each way: all need not run at once."""
    marks = {row["plan"] for row in rows if "plan" in row}
    earlier = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    found = {row["way"]: row for row in earlier if row.get("plan") in marks}
    return list((found | {row["way"]: row for row in rows}).values())


def _show(rows: Sequence[dict[str, Any]], given: argparse.Namespace) -> list[Row]:
    """Print and write what there is, also where the run was cut off; return the goals."""
    judged = report.goals({row["way"]: row for row in rows}, large=given.large, timed=not given.dry)
    text = report.markdown(rows, _title(given), judged)
    (given.out / "table.md").write_text(text)
    print(text, flush=True)
    if judged:
        Console(width=160).print(table(judged, _title(given)))
    return judged


def _prepare(given: argparse.Namespace, stack: ExitStack) -> set[int]:
    """Calibrate, fill the rest of the card, write the plan; return the processes that outlive a way."""
    trials = trial_list(given.trials)
    if given.large:
        trials = largest(trials)
    measured = _calibration(trials, given)
    card_gib, ballast_bytes, keep = given.card, 0, set[int]()
    if given.dry:
        card_gib = given.card or 140.0
    elif given.card:
        from benchmarks.gpu_pool import Ballast

        ballast = Ballast(int(given.card * GIB))
        stack.callback(ballast.close)
        ballast_bytes = ballast.used_bytes
        keep.add(ballast.pid)
    else:
        from benchmarks.sweep.watching import Card

        card_gib = round(Card().free_gib(), 3)
    need_gib = {trial.id: float(measured[trial.id]["need_gib"]) for trial in trials}
    if given.without_beyond:
        trials = [trial for trial in trials if need_gib[trial.id] <= card_gib]
    ms = {trial.id: float(measured[trial.id]["ms"]) for trial in trials}
    plan = Plan(
        device="cpu" if given.dry else "cuda",
        card_gib=card_gib,
        whole=not given.card,
        ballast_bytes=ballast_bytes,
        order=tuple(trial.id for trial in trials),
        steps={trial.id: _DRY_STEPS if given.dry else trial.steps(ms[trial.id], given.scale) for trial in trials},
        ms=ms,
        need_gib=need_gib,
        dry=given.dry,
        pool_settings=given.settings,
    )
    plan.write(given.out / "plan.json")
    for trial in trials:
        _print_trial(trial, plan)
    return keep


def _calibration(trials: Sequence[Trial], given: argparse.Namespace) -> dict[int, dict[str, Any]]:
    """Return what each trial needs alone; measure those that are not known yet."""
    if given.dry:
        return calibrating.estimates(trials)
    file = given.calibration or given.out / "calibration.json"
    missing = [str(trial.id) for trial in trials if trial.id not in calibrating.read(file)]
    if missing:
        print(f"measuring {len(missing)} trials alone", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "benchmarks.sweep.calibrating", str(file), *missing]
        subprocess.run(command, cwd=ROOT, check=True)
    return calibrating.read(file)


def _print_trial(trial: Trial, plan: Plan) -> None:
    shape = " ".join(f"{name}={value}" for name, value in trial.params.items())
    beyond = "beyond the card" if trial.id in plan.beyond else ""
    need_gib, steps, ms = plan.need_gib[trial.id], plan.steps[trial.id], plan.ms[trial.id]
    times = f"{ms:6.1f} ms x {steps:4} = {plan.alone_s(trial.id):5.2f} s"
    print(f"{trial.id:3} {shape:70} {need_gib:6.2f} GiB  {times} {beyond}", file=sys.stderr)


def _run_way(name: str, given: argparse.Namespace, end_s: float, keep: set[int]) -> dict[str, Any]:
    """Run a way in a process of its own and return its row, which says so if it failed."""
    limit_s = min(given.way_limit_s, end_s - time.monotonic())
    if limit_s < _LEAST_S:
        return {"way": name, "skipped": "no time is left"}
    print(f"{name}: at most {limit_s:.0f} s", file=sys.stderr, flush=True)
    plan_file = given.out / "plan.json"
    command = [sys.executable, "-m", "benchmarks.sweep.way", name, str(plan_file), str(given.out), f"{limit_s:.0f}"]
    env = dict(os.environ) | {PLAN_VARIABLE: str(plan_file)}
    told, error = "", ""
    with (given.out / f"way-{name}.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            told, _ = process.communicate(timeout=limit_s + _ENDING_S)
        except subprocess.TimeoutExpired:
            error = f"it did not end {_ENDING_S:g} s after its limit"
        finally:
            _end(process)
    try:
        row: dict[str, Any] = json.loads(told.strip().splitlines()[-1])
    except (ValueError, IndexError):
        row = {"way": name, "error": error or _last_line(given.out / f"way-{name}.log", process.returncode)}
    return row | {"left_behind": end_leftovers(keep)}


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_line(log: Path, code: int) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"code {code}: {lines[-1] if lines else 'it said nothing'}"


def _append(file: Path, row: dict[str, Any]) -> None:
    with file.open("a") as opened:
        opened.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def _title(given: argparse.Namespace) -> str:
    card = (
        "the CPU, dry" if given.dry else f"GPU 0 as a card of {given.card:g} GiB" if given.card else "GPU 0, all of it"
    )
    return f"One sweep on {card}"


def _obstacle() -> str:
    from benchmarks.gpu import obstacle

    return obstacle()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("artifacts/sweep"), help="folder for what was measured (artifacts/sweep)")
    add("--ways", help=f"with commas (default: {DEFAULT}; with --large: {DEFAULT_LARGE})")
    add("--card", type=float, default=24.0, help="GiB of the card that are left free; 0: all (default: 24)")
    add("--trials", type=int, default=24, help="of 48; multiples of 8 keep the mix (default: 24)")
    add("--large", action="store_true", help="only the 8 largest of them")
    add("--without-beyond", action="store_true", help="leave out what is larger than the card")
    # With 0.6 the oracle takes 40 s on a H200, and one after another takes 70: long enough that starts do not decide.
    add("--scale", type=float, default=0.6, help="1: 2 to 8 s of the card for each trial (default: 0.6)")
    add("--limit-s", type=float, default=500.0, help="seconds for everything; later ways are left out (default: 500)")
    add("--way-limit-s", type=float, default=150.0, help="seconds for one way (default: 150)")
    add("--calibration", type=Path, help="file to read, or to write where it lacks a trial (default: in --out)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting for the pool ways; repeatable")
    add("--dry", action="store_true", help="tiny, on the CPU: shows only that it works")
    given = parser.parse_args(arguments)
    given.out = given.out.resolve()
    given.ways = (given.ways or (DEFAULT_LARGE if given.large else DEFAULT)).split(",")
    if given.dry:
        given.ways = [name for name in given.ways if not name.endswith("-mps")]
    try:
        for name in given.ways:
            way_of(name)
        given.settings = dict(item.split("=", 1) for item in given.set)
        load_settings(given.settings, env={})
    except (ValueError, KeyError, VrampoolError) as error:
        parser.error(str(error))
    if not 1 <= given.trials <= len(all_trials()) or given.card < 0 or given.scale <= 0:
        parser.error(f"--trials must be 1 to {len(all_trials())}, --card 0 or more, --scale more than 0")
    return given
