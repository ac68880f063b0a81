"""On a card: how much do learned requests reserve in vain, and how often are they too small? Leases shrink meanwhile.

`python -m benchmarks.gpu_learning --out DIR` (or `make bench-learning`) runs families of models that declare nothing,
one after another in one pool on GPU 0, which counts as a card of 16 GiB: a ballast process really holds the rest of
it. That is small enough for memory to be what is short: a lease shrinks only for a trial that waits for its room.
Each trial trains for some seconds and reports as it goes. A line of JSON for each family goes to DIR/learning.jsonl,
all attempts and samples to files beside it. `--dry` runs all of it on the CPU with tiny trials.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import optuna
from rich.console import Console

import vrampool
from benchmarks.gpu import obstacle
from benchmarks.gpu_pool import FAMILIES, OBJECTIVES, Ballast, card_pool
from benchmarks.lease_times import (
    Attempt,
    LeaseTime,
    after_first,
    concurrency,
    count_moves,
    lease_times,
    over_reserved,
    request_error,
    retries_per_100,
)
from benchmarks.rows import Row, table
from vrampool.memory.learning.fitting import available
from vrampool.queueing import History
from vrampool.storage import attempt_of, root_of
from vrampool.units import GIB

#: The first trials teach: nothing is known before them.
FIRST = 10
OVER_GOAL, RETRIES_GOAL = 0.20, 5.0
_END_S = 60.0
_DRY_POINTS = {
    "mlp": {"width": 512, "depth": 2, "batch": 64},
    "cnn": {"width": 32, "depth": 2, "batch": 16, "size": 32},
    "transformer": {"width": 256, "depth": 2, "batch": 2, "sequence": 64, "amp": False},
}


@contextmanager
def small_pool(out: Path, given: argparse.Namespace) -> Iterator[vrampool.Pool]:
    """A pool on a card of the size asked for, or a small one on the CPU."""
    state = out / "state"
    if given.dry:
        options: dict[str, Any] = {"gpu": "cpu", "share": True, "budget": "3GiB", "max_trials": 2, "sample_s": 0.25}
        with vrampool.Pool(state_dir=state, **options) as pool:
            yield pool
        return
    card_bytes = int(given.card * GIB)
    ballast = Ballast(card_bytes)
    settings = {"start_method": "forkserver", "concurrency": given.concurrency}
    try:
        with card_pool(state, card_bytes, ballast.used_bytes, **settings) as pool:
            yield pool
    finally:
        ballast.close()


def run_family(pool: vrampool.Pool, family: str, given: argparse.Namespace, out: Path, left_s: float) -> dict[str, Any]:
    """Run one family and return what was measured; its attempts and samples go to files."""
    dry: dict[str, Any] = {"points": [_DRY_POINTS[family]] * given.trials} if given.dry else {}
    env = {"VRAMPOOL_BENCH_TRAIN_S": str(given.train_s), "VRAMPOOL_BENCH_DEVICE": "cpu" if given.dry else "cuda"}
    started_s, reasons = time.monotonic(), Counter[str]()
    handle = pool.submit(
        f"{OBJECTIVES}:{family}",
        given.trials,
        study_name=family,
        sampler=optuna.samplers.RandomSampler(seed=given.seed),
        env=env,
        **dry,
    )

    def look(_: Any) -> None:
        reasons.update(_kind(device.reason) for device in pool.devices())

    try:
        handle.wait(max(1.0, left_s), on_progress=look)
    except TimeoutError:
        handle.cancel("its time was over")
        handle.wait(_END_S)
    wall_s = time.monotonic() - started_s
    attempts = read_attempts(handle.trials)
    samples = [
        sample
        for device in pool.devices()
        for sample in History(pool.connection, pool.settings.pool).samples(device.device_id)
        if any(trial["study"] == family for trial in sample["trials"])
    ]
    _keep(out, family, handle.trials, samples)
    log = next((path for path in out.glob("state/**/worker.log")), None)
    moves = count_moves(log.read_text(errors="replace").splitlines(), family) if log else Counter[str]()
    progress = handle.progress()
    return {
        "family": family,
        "trials": progress.finished,
        "asked": given.trials,
        "states": progress.counts,
        "wall_s": round(wall_s, 1),
        **figures(attempts, samples, family),
        "moves": moves,
        "stopped_by": reasons,
    }


def _kind(reason: str) -> str:
    """Say in a word what kept the next trial from starting."""
    if any(word in reason for word in ("SM ", " at once", "being measured")):
        return "gain"
    if "alone" in reason:
        return "a trial runs alone"
    return "memory, or nothing" if " free of its " in reason else "other"


def read_attempts(trials: Sequence[optuna.trial.FrozenTrial]) -> list[Attempt]:
    """Return the attempts that were begun and ended, by number."""
    found = []
    for trial in trials:
        facts = attempt_of(trial)
        if facts is not None and facts.end != "cancelled":
            found.append(
                Attempt(
                    number=trial.number,
                    root=root_of(trial),
                    end=str(facts.end),
                    verdict=facts.verdict,
                    request_bytes=facts.request_bytes,
                    peak_bytes=facts.peak_bytes,
                    overhead_bytes=facts.overhead_bytes,
                    at_least=facts.num_alloc_retries > 0,
                    shrunk=facts.shrunk_from_bytes is not None,
                )
            )
    return found


def _keep(
    out: Path, family: str, trials: Sequence[optuna.trial.FrozenTrial], samples: Sequence[Mapping[str, Any]]
) -> None:
    with (out / f"{family}-attempts.jsonl").open("w") as file:
        for trial in trials:
            facts = trial.user_attrs.get("vrampool:attempt")
            line = {"number": trial.number, "root": root_of(trial), "params": trial.params, "facts": facts}
            file.write(json.dumps(line) + "\n")
    with gzip.open(out / f"{family}-samples.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(sample) + "\n" for sample in samples)


def figures(attempts: Sequence[Attempt], samples: Sequence[Mapping[str, Any]], study: str) -> dict[str, Any]:
    """Return what attempts and samples say of the requests and leases of one study."""
    overheads = [attempt.overhead_bytes for attempt in attempts if attempt.overhead_bytes]
    times = lease_times(samples, study, max(overheads, default=0))
    later = after_first(attempts, FIRST)
    over, over_later = over_reserved(attempts, times), over_reserved(later, times)
    error = request_error(later)
    told = [sample["utilisation"] for sample in samples if sample.get("utilisation") is not None]
    return {
        "attempts": len(attempts),
        "ends": Counter(attempt.end for attempt in attempts),
        "verdicts": Counter(attempt.verdict for attempt in attempts if attempt.verdict),
        "retried": sum(attempt.retry for attempt in attempts),
        "alone": sum(attempt.request_bytes is None for attempt in attempts),
        "over": asdict(over) if over else None,
        "over_later": asdict(over_later) if over_later else None,
        "retries_per_100_later": retries_per_100(later),
        "verdicts_later": Counter(attempt.verdict for attempt in later if attempt.verdict),
        "request_to_peak": error[0] if error else None,
        "request_error": error[1] if error else None,
        "lost_share": _lost_share(attempts, times),
        "shrunk_attempts": sum(attempt.shrunk for attempt in attempts),
        "shrinks_seen": sum(change < 0 for time in times.values() for change in time.changes),
        "grows_seen": sum(change > 0 for time in times.values() for change in time.changes),
        "at_once": concurrency(samples, study),
        "sm_busy": mean(told) if told else None,
        "samples": len(samples),
    }


def _lost_share(attempts: Sequence[Attempt], times: Mapping[int, LeaseTime]) -> float | None:
    """Return the part of all byte seconds leased that went to attempts which did not complete."""
    leased = {item.number: times[item.number].leased for item in attempts if item.number in times}
    lost = sum(leased.get(item.number, 0.0) for item in attempts if item.end not in ("complete", "pruned"))
    return lost / sum(leased.values()) if leased else None


def rows_of(found: Mapping[str, Any]) -> list[Row]:
    """Judge one family."""
    family = found["family"]
    rows = [Row(f"{family}: trials that ended, of {found['asked']}", str(found["trials"]))]
    for words, name in (("all trials", "over"), (f"after the first {FIRST}", "over_later")):
        over = found[name]
        goal = f"<= {OVER_GOAL:.0%}"
        if over is None:
            rows.append(Row(f"{family}: leased beyond final peaks, by time, {words}", "not measured", goal))
            continue
        kept = over["peaks"] <= OVER_GOAL
        rows.append(Row(f"{family}: leased beyond final peaks, by time, {words}", f"{over['peaks']:.1%}", goal, kept))
        rows.append(Row("  the same, had no lease been made smaller", f"{over['unshrunk']:.1%}"))
        rows.append(Row("  leased beyond what was held at that moment", f"{over['moment']:.1%}"))
    retries = found["retries_per_100_later"]
    what, goal = f"{family}: retried attempts per 100 trials after the first {FIRST}", f"<= {RETRIES_GOAL:g}"
    if retries is None:
        rows.append(Row(what, "not measured", goal))
    else:
        rows.append(Row(what, f"{retries:.1f}", goal, retries <= RETRIES_GOAL))
    victims = found["verdicts"].get("victim", 0)
    rows.append(Row(f"{family}: victims", str(victims), "0", victims == 0))
    rows.append(Row("  verdicts of all attempts", _counts(found["verdicts"])))
    if found["lost_share"] is not None:
        rows.append(Row("  byte seconds leased by attempts that did not complete", f"{found['lost_share']:.1%}"))
    if found["request_error"] is not None:
        measured = f"{found['request_to_peak']:.2f} x, off by {found['request_error']:.1%}"
        rows.append(Row(f"  request at admission / final peak, after the first {FIRST}, medians", measured))
    seen = f"{found['shrinks_seen']} smaller, {found['grows_seen']} larger, {found['shrunk_attempts']} so at the end"
    rows.append(Row("  leases that changed, as samples saw it", seen))
    rows.append(Row("  the same in the worker's log", _counts(found["moves"])))
    rows.append(Row("  what the next trial waited for, of all looks", _counts(found["stopped_by"])))
    if found["at_once"] is not None:
        sm = "" if found["sm_busy"] is None else f", SM {100 * found['sm_busy']:.0f} %"
        rows.append(Row("  trials at once, makespan", f"{found['at_once']:.1f}, {found['wall_s']:.0f} s{sm}"))
    return rows


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def measure(out: Path, given: argparse.Namespace) -> list[Row]:
    """Run the families; write what was measured to `out` as it comes."""
    deadline_s = time.monotonic() + given.limit_s
    rows: list[Row] = []
    with small_pool(out, given) as pool:
        for family in given.families:
            left_s = deadline_s - time.monotonic()
            if left_s < given.train_s:
                rows.append(Row(f"{family}: left out", "its time was over"))
                continue
            found = run_family(pool, family, given, out, left_s)
            with (out / "learning.jsonl").open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(f"{family}: {found['trials']} trials in {found['wall_s']} s", flush=True)
            rows += rows_of(found)
    return rows


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_learning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="new folder for figures and state (default: a temporary one)")
    parser.add_argument("--families", default="mlp,transformer", help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--trials", type=int, help="root trials of each family (default: 100; 4 with --dry)")
    parser.add_argument("--train-s", type=float, help="seconds that each trial trains (default: 4; 0.5 with --dry)")
    parser.add_argument("--card", type=float, default=16.0, help="GiB of the card that are left free (default: 16)")
    parser.add_argument(
        "--concurrency",
        choices=("auto", "memory"),
        default="auto",
        help="memory: as many trials as fit, so that leases shrink more often (default: auto)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random sampler (default: 1)")
    parser.add_argument("--limit-s", type=float, default=420.0, help="seconds for all families (default: 420)")
    parser.add_argument("--dry", action="store_true", help="tiny trials on the CPU: shows only that it runs")
    given = parser.parse_args(arguments)
    given.families = given.families.split(",")
    given.trials = given.trials or (4 if given.dry else 100)
    given.train_s = given.train_s or (0.5 if given.dry else 4.0)
    known = _DRY_POINTS if given.dry else FAMILIES
    if unknown := sorted(set(given.families) - set(known)):
        parser.error(f"no such family{' for --dry' if given.dry else ''}: {unknown[0]}; known: {', '.join(known)}")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the goals, and return 1 when one was missed or not measured, 2 where it cannot be run."""
    given = parse(arguments)
    reason = "" if available() else "scikit-learn is not installed; pip install 'vrampool[learn]'"
    reason = reason or ("" if given.dry else obstacle())
    if reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="vrampool-bench-") as folder:
        out = (given.out or Path(folder)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        rows = measure(out, given)
        (out / "rows.json").write_text(json.dumps([row.to_json() for row in rows], indent=1))
    where = "the CPU, dry" if given.dry else f"GPU 0 as a card of {given.card:g} GiB"
    Console(width=140).print(table(rows, f"Learned requests on {where}"))
    judged = [row for row in rows if row.kept is not None]
    return 0 if given.dry or (len(judged) == 4 * len(given.families) and all(row.kept for row in judged)) else 1


if __name__ == "__main__":
    sys.exit(main())
