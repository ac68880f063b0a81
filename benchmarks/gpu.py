"""On a card, with goals: is all memory back after each trial, do caps hold, are verdicts right, is anybody a victim?

`python -m benchmarks.gpu` (or `make bench-gpu`) runs on GPU 0, which counts as a card of 24 GiB: a ballast process
really holds the rest of it, so that out-of-memory errors are the driver's own. Two parts, of 100 trials each:

1. one after another: what the card has in use after each, beyond what it had before the first;
2. side by side, a fifth of them larger than the card: those must be told infeasible, all others must complete, and
   nobody may run out of memory by a neighbour's fault.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from rich.console import Console

from benchmarks.gpu_pool import OBJECTIVES, Ballast, card_pool
from benchmarks.rows import Row, table
from vrampool.errors import VrampoolError
from vrampool.queueing import History
from vrampool.settings import Settings
from vrampool.units import GIB, MIB

#: The card never shows more of a trial than its lease and this.
CAP_SLACK_BYTES = 64 * MIB


def points(trials: int, card_gib: float, share_beyond: float, *, seed: int = 1) -> list[dict[str, float]]:
    """Return sizes in GiB: that share of them larger than the card, the others within its budget; mixed."""
    draw = random.Random(seed)
    beyond = round(trials * share_beyond)
    sizes = [draw.uniform(1.1, 1.6) * card_gib for _ in range(beyond)]
    sizes += [draw.uniform(0.02, 0.6) * card_gib for _ in range(trials - beyond)]
    draw.shuffle(sizes)
    return [{"gib": round(size, 2)} for size in sizes]


def rows_of_release(releases: Sequence[Mapping[str, Any]], baseline_bytes: int) -> list[Row]:
    """Sum up trials that ran one after another: what was in use after each, beyond the baseline."""
    left = [max(0, int(item["used_after_bytes"]) - baseline_bytes) for item in releases]
    most_mib = max(left, default=0) / MIB
    slowest_s = max((float(item["back_s"]) for item in releases), default=0.0)
    return [
        Row("trials one after another whose end was watched", str(len(left))),
        Row("in use after a trial beyond the baseline, largest", f"{most_mib:.0f} MiB", "0 MiB", most_mib == 0),
        Row("until the memory was seen back, largest", f"{slowest_s:.2f} s"),
    ]


def rows_of_caps(samples: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Sum up samples of trials side by side: what the card showed of a trial beyond its lease."""
    over = [
        int(trial["measured_bytes"]) - int(trial["lease_bytes"])
        for sample in samples
        for trial in sample["trials"]
        if trial["measured_bytes"]
    ]
    if not over:
        return [Row("measured memory of a trial above its lease", "the driver does not tell", "<= 64 MiB", False)]
    most_mib = max(over) / MIB
    kept = max(over) <= CAP_SLACK_BYTES
    return [Row(f"measured above the lease, largest of {len(over)} samples", f"{most_mib:.0f} MiB", "<= 64 MiB", kept)]


def rows_of_verdicts(attempts: Sequence[Mapping[str, Any]], card_gib: float) -> list[Row]:
    """Judge how trials ended, by what they were made to hold.

    Args:
        attempts: Of all attempts: `root` (number of the trial that was asked for), `gib`, `end`, `verdict`.
        card_gib: Size of the card.
    """
    last: dict[int, Mapping[str, Any]] = {}
    for attempt in attempts:
        last[attempt["root"]] = attempt
    beyond = [item for item in last.values() if item["gib"] > card_gib]
    within = [item for item in last.values() if item["gib"] <= card_gib]
    infeasible = sum(item["end"] == "infeasible" for item in beyond)
    complete = sum(item["end"] == "complete" for item in within)
    verdicts = Counter(item["verdict"] for item in attempts if item["verdict"])
    told = ", ".join(f"{count} {name}" for name, count in sorted(verdicts.items())) or "none"
    return [
        Row("larger than the card, and told so", f"{infeasible} of {len(beyond)}", "all", infeasible == len(beyond)),
        Row("fit the card, and completed", f"{complete} of {len(within)}", "all", complete == len(within)),
        Row("verdicts of out-of-memory errors", told),
        Row("victims", str(verdicts.get("victim", 0)), "0", verdicts.get("victim", 0) == 0),
    ]


def measure(out: Path, trials: int, card_gib: float, share_beyond: float, limit_s: float) -> Iterator[list[Row]]:
    """Run both parts; return the rows of each, and write what was measured to `out`, as soon as it has run.

    Args:
        out: New folder.
        trials: Of each part.
        card_gib: Size of the card.
        share_beyond: Part of the second part's trials that are larger.
        limit_s: Limit of each part; what has not run by then is told, and the rest is judged.
    """
    ballast = Ballast(int(card_gib * GIB))
    try:
        with card_pool(out / "state", int(card_gib * GIB), ballast.used_bytes) as pool:
            history = History(pool.connection, pool.settings.pool)
            options: dict[str, Any] = {"sampler": optuna.samplers.RandomSampler(seed=1)}
            options |= {"timeout": limit_s}
            small = points(trials, card_gib, 0.0)
            one = pool.submit(
                f"{OBJECTIVES}:sized", trials, study_name="one-by-one", points=small, max_concurrent_trials=1, **options
            ).wait()
            releases = history.releases("one-by-one")
            baseline_bytes = min(int(item["used_before_bytes"] or 0) for item in releases)
            found: dict[str, Any] = {"one": one.progress().counts, "releases": releases}
            (out / "figures.json").write_text(json.dumps(found, indent=1))
            yield rows_of_release(releases, baseline_bytes)
            mixed = points(trials, card_gib, share_beyond, seed=2)
            many = pool.submit(f"{OBJECTIVES}:sized", trials, study_name="mixed", points=mixed, **options).wait()
            samples = [item for device in pool.devices() for item in history.samples(device.device_id)]
            attempts = [_attempt(trial) for trial in many.trials if "vrampool:attempt" in trial.user_attrs]
            found |= {"many": many.progress().counts, "attempts": attempts}
            (out / "figures.json").write_text(json.dumps(found, indent=1))
    finally:
        ballast.close()
    left_out = trials - many.progress().finished
    rows = [Row("left out, for the time was up", f"{left_out} of {trials}")] if left_out else []
    yield rows_of_caps(samples) + rows_of_verdicts(attempts, card_gib) + rows


def _attempt(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    from vrampool.storage import mark_of

    facts, mark = trial.user_attrs["vrampool:attempt"], mark_of(trial)
    root = trial.number if mark is None or mark.root is None else mark.root
    kept = ("end", "verdict", "lease_bytes", "peak_bytes")
    return {"root": root, "gib": trial.params["gib"]} | {name: facts.get(name) for name in kept}


def obstacle() -> str:
    """Say why it cannot be run here; empty when it can."""
    from vrampool_worker.devices import find_devices

    try:
        devices = find_devices(Settings(gpu="0"))
    except VrampoolError as error:
        return str(error).removeprefix("--gpu 0: ").partition(". Give the card")[0]
    try:
        import torch
    except ImportError:
        return "torch is not installed; pip install 'vrampool[torch]'"
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is a build for the CPU; install its CUDA build"
    free_bytes = devices[0].read().free_bytes
    return "" if free_bytes is not None else f"{devices[0].label} does not tell its memory"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the goals, and return 1 when one was missed, 2 where there is no card."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=100, help="trials of each part (default: 100)")
    parser.add_argument("--card", type=float, default=24.0, help="GiB of the card that are left free (default: 24)")
    parser.add_argument("--beyond", type=float, default=0.2, help="share of trials larger than that (default: 0.2)")
    parser.add_argument("--limit-s", type=float, default=600, help="seconds for each part (default: 600)")
    parser.add_argument("--out", type=Path, help="new folder for figures and state (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    given = parser.parse_args(arguments)
    if given.trials < 1 or given.card <= 0 or not 0 <= given.beyond <= 1:
        parser.error("--trials and --card must be more than 0, and --beyond a share from 0 to 1")
    if given.limit_s <= 0:
        parser.error("--limit-s must be more than 0")
    if given.out and given.out.exists() and any(given.out.iterdir()):
        parser.error(f"--out: {given.out} is not empty; name a new folder")
    reason = obstacle()
    if reason:
        print(f"error: it needs an NVIDIA GPU with torch: {reason}", file=sys.stderr)
        return 2
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="vrampool-gpu-") as folder:
        out = (given.out or Path(folder)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        rows = []
        for part in measure(out, given.trials, given.card, given.beyond, given.limit_s):
            Console(width=110).print(table(part, f"GPU 0 as a card of {given.card:g} GiB"))
            rows += part
    if given.json:
        given.json.write_text(json.dumps([row.to_json() for row in rows], indent=1))
    return 1 if any(row.kept is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
