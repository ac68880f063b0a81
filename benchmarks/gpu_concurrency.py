"""On a card: does the pool find how many trials at once the card gains from? Against the best fixed number.

`python -m benchmarks.gpu_concurrency --out DIR` (or `make bench-concurrency`) runs trials of one size for some seconds
with the number found by the pool, and with each fixed number; small trials first, then large ones. All declare what
they need, so that memory is never the question. Each way has the same time and enough trials: what is compared is the
steps that all of them did together, starts of trials included. The time of the number found begins with the first step
of its first trial, so that the search for it counts; that of a fixed number begins when so many trials run. Lines of
JSON go to DIR/concurrency.jsonl as they come. `--dry` runs all of it on the CPU with tiny trials.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import optuna
from rich.console import Console

import vrampool
from benchmarks.gpu import obstacle
from benchmarks.rows import Row, table
from benchmarks.step_times import (
    Trace,
    by_level,
    changes_of_level,
    done_by,
    first_step_s,
    rate,
    read_traces,
    since,
    time_until,
)
from vrampool.handle import Handle
from vrampool.queueing import History

OBJECTIVES = Path(__file__).with_name("concurrency_objectives.py")
FOUND = "found"
#: The total throughput may be so much below that of the best fixed number, and the same work take so much longer.
TOLERANCE = 0.10
_LOOK_S = 0.2
#: The first trial of a way must have done its first step within so long; an ended way must be over.
_START_S, _END_S = 60.0, 30.0
#: A fixed number must be reached within so long; else it is measured all the same.
_FILL_S = 20.0
#: Until trials are forked from a server, for one trial and for all; and what each of those declares.
_WARM_S, _WARM_VRAM = 90.0, "1GiB"


@dataclass(frozen=True)
class Kind:
    """Trials of one size."""

    name: str
    objective: str
    steps: int  #: of each trial
    window_s: float  #: each way is measured for so long
    levels: tuple[int, ...]  #: fixed numbers at once
    vram: str  #: what each trial declares


def kinds(given: argparse.Namespace) -> list[Kind]:
    """Return what is measured, as the command line asks."""
    levels = {name: tuple(int(word) for word in getattr(given, f"ways_{name}").split(",")) for name in given.kinds}
    if given.dry:
        return [Kind(name, "tiny", 400, 2.0, (1, 2), "512MiB") for name in given.kinds]
    known = {
        "small": lambda: Kind("small", "small", given.steps_small, given.window_small, levels["small"], "3GiB"),
        "large": lambda: Kind("large", "large", given.steps_large, given.window_large, levels["large"], "6GiB"),
    }
    return [known[name]() for name in given.kinds]


class Bench:
    """Runs ways and writes down what they did.

    Args:
        out: Folder for everything.
        limit_s: No way is begun that would not end within so long from now.
        dry: On the CPU.
        mps: With the trials as clients of MPS.
    """

    def __init__(self, out: Path, limit_s: float, *, dry: bool, mps: bool) -> None:
        self._out = out
        self._deadline_s = time.monotonic() + limit_s
        self._dry = dry
        self._mps = mps
        self.found: list[dict[str, Any]] = []  #: a line for each way
        self.traces: dict[tuple[str, str], list[Trace]] = {}  #: by kind and way
        self.left_out: list[str] = []

    def run(self, asked: Sequence[Kind]) -> None:
        """Run the found number of all kinds in one pool, then the fixed ones in another that looks at memory alone."""
        for concurrency in ("auto", "memory"):
            with vrampool.Pool(**self._settings(concurrency)) as pool:
                self._warm_up(pool, concurrency)
                for kind in asked:
                    levels: Iterable[int | None] = (None,) if concurrency == "auto" else kind.levels
                    for level in levels:
                        self._try(pool, kind, level)

    def _warm_up(self, pool: vrampool.Pool, concurrency: str) -> None:
        """Run trials until one is forked: before the server has imported everything, trials are spawned and late."""
        folder = self._out / f"warm-{concurrency}"
        folder.mkdir()
        env = {"VRAMPOOL_BENCH_DIR": str(folder), "VRAMPOOL_BENCH_STEPS": "20"}
        end_s = time.monotonic() + _WARM_S
        forked, count = False, 0
        while not forked and time.monotonic() < end_s:
            handle = pool.submit(
                f"{OBJECTIVES}:tiny", 1, study_name=f"warm-{concurrency}-{count}", vram=_WARM_VRAM, env=env
            )
            attempts = [trial.user_attrs.get("vrampool:attempt", {}) for trial in handle.wait(_WARM_S).trials]
            if handle.failures():
                raise RuntimeError(f"the first trials fail: {handle.failures()}")
            forked, count = bool(attempts and attempts[-1].get("forked")), count + 1
        if not forked:
            print("trials are not forked here: their starts take long, and weigh on all ways", flush=True)

    def _settings(self, concurrency: str) -> dict[str, Any]:
        common = {
            "state_dir": self._out / f"state-{concurrency}",
            "concurrency": concurrency,
            "start_method": "forkserver",
            "spares": 8,
            "stop_ask_s": 0.2,
        }
        if self._dry:
            return common | {"gpu": "cpu", "share": True, "budget": "2GiB", "max_trials": 2, "spares": 1}
        return common | {"gpu": "0", "max_trials": 16, "mps": "on" if self._mps else "off"}

    def _try(self, pool: vrampool.Pool, kind: Kind, level: int | None) -> None:
        way = FOUND if level is None else str(level)
        name = f"{kind.name}-{way}"
        if time.monotonic() + kind.window_s + 10.0 > self._deadline_s:
            self.left_out.append(name)
            return
        line: dict[str, Any] = {"kind": kind.name, "way": way, "mps": self._mps}
        try:
            line |= self._way(pool, kind, level, name)
        except (RuntimeError, TimeoutError) as error:
            line["error"] = str(error)
        self.found.append(line)
        with (self._out / "concurrency.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        told = line.get("error") or f"{line['steps_per_s']:.0f} steps/s, settled {line['settled_steps_per_s']:.0f}"
        print(f"{name}: {told}", flush=True)

    def _way(self, pool: vrampool.Pool, kind: Kind, level: int | None, name: str) -> dict[str, Any]:
        folder = self._out / name
        folder.mkdir()
        submitted_s, submitted_at = time.monotonic(), time.time()
        handle = pool.submit(
            f"{OBJECTIVES}:{kind.objective}",
            study_name=name,
            vram=kind.vram,
            sampler=optuna.samplers.RandomSampler(seed=1),
            max_trials_per_device=level,  # one more waits always, as it does for the number found
            env={"VRAMPOOL_BENCH_DIR": str(folder), "VRAMPOOL_BENCH_STEPS": str(kind.steps)},
        )
        try:
            began_s = self._await_trials(handle, folder, level or 1)
            reasons = self._watch(pool, handle, began_s, began_s + kind.window_s)
        finally:
            handle.cancel("measured for long enough")
            handle.wait(_END_S)
        traces = self.traces[kind.name, str(level or FOUND)] = since(read_traces(folder), began_s)
        samples = [
            sample
            for device in pool.devices()
            for sample in History(pool.connection, pool.settings.pool).samples(device.device_id, submitted_at)
        ]
        attempts = [trial.user_attrs.get("vrampool:attempt", {}) for trial in handle.trials]
        return {
            "window_s": kind.window_s,
            "began_s": round(began_s - submitted_s, 2),
            **figures(traces, began_s, began_s + kind.window_s),
            **busy(samples),
            "ends": Counter(str(attempt["end"]) for attempt in attempts if "end" in attempt),
            "by_mps": sum(bool(attempt.get("mps")) for attempt in attempts),
            "forked": sum(bool(attempt.get("forked")) for attempt in attempts),
            "reasons": reasons,
            "mps_notes": [note for device in pool.devices() if device.mps for note in device.mps.notes],
        }

    def _await_trials(self, handle: Handle, folder: Path, count: int) -> float:
        """Wait until so many trials take steps at once, or for some seconds; return since when they do."""
        end_s = time.monotonic() + _START_S
        while not (traces := read_traces(folder)):
            self._check(handle)
            if time.monotonic() > end_s:
                raise TimeoutError(f"no trial did a step within {_START_S:g} s")
            time.sleep(_LOOK_S)
        began_s = first_step_s(traces)
        while count > 1 and time.monotonic() < began_s + _FILL_S:
            self._check(handle)
            now_s = time.monotonic()
            # The newest line of a trial that goes on is a moment old.
            if sum(trace.at_s[-1] > now_s - 1.0 for trace in read_traces(folder)) >= count:
                return now_s
            time.sleep(_LOOK_S)
        return began_s if count == 1 else time.monotonic()

    def _watch(self, pool: vrampool.Pool, handle: Handle, began_s: float, end_s: float) -> list[Any]:
        """Wait for the end of the window; return what the device said meanwhile: (seconds, sentence), once each."""
        said: dict[str, float] = {}
        while (now_s := time.monotonic()) < end_s + 2 * _LOOK_S:  # files are behind by a stamp
            for device in pool.devices():
                if device.reason:
                    said.setdefault(device.reason, round(now_s - began_s, 1))
            self._check(handle)
            time.sleep(_LOOK_S)
        return [(at_s, sentence) for sentence, at_s in said.items()]

    def _check(self, handle: Handle) -> None:
        progress = handle.progress()
        if progress.final or progress.counts.get("FAIL"):
            raise RuntimeError(f"trials fail: {progress.reason} {handle.failures()}")


def figures(traces: Sequence[Trace], began_s: float, end_s: float) -> dict[str, Any]:
    """Return what trials did from their first step to the end of the window; settled is the second half."""
    levels = by_level(traces, began_s, end_s)
    middle_s = (began_s + end_s) / 2
    return {
        "steps": round(done_by(traces, end_s)),
        "steps_per_s": round(rate(traces, began_s, end_s), 1),
        "settled_steps_per_s": round(rate(traces, middle_s, end_s), 1),
        "at_once": round(sum(level * seconds for level, (seconds, _) in levels.items()) / (end_s - began_s), 1),
        "levels": {str(level): [round(seconds, 1), round(speed, 1)] for level, (seconds, speed) in levels.items()},
        "changes": changes_of_level(traces, began_s, end_s),
    }


def busy(samples: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean utilisation that the device told, over all and by the number of trials on it."""
    told: dict[int, list[float]] = defaultdict(list)
    for sample in samples:
        if sample["trials"] and sample.get("utilisation") is not None:
            told[len(sample["trials"])].append(float(sample["utilisation"]))
    every = [share for shares in told.values() for share in shares]
    return {
        "sm_busy": round(mean(every), 3) if every else None,
        "sm_busy_by_trials": {str(count): round(mean(shares), 3) for count, shares in sorted(told.items())},
    }


def rows_of(kind: str, lines: Sequence[Mapping[str, Any]], traces: Mapping[tuple[str, str], list[Trace]]) -> list[Row]:
    """Judge the found number of one kind against the best fixed one."""
    rows = []
    whole = [line for line in lines if line["kind"] == kind and "error" not in line]
    for line in lines:
        if line["kind"] != kind:
            continue
        what = f"{kind} trials, {'number found' if line['way'] == FOUND else line['way'] + ' at once'}"
        if "error" in line:
            rows.append(Row(what, f"failed: {line['error'][:60]}"))
            continue
        sm = "" if line["sm_busy"] is None else f", SM {100 * line['sm_busy']:.0f} %"
        settled = f"settled {line['settled_steps_per_s']:.0f}/s"
        rows.append(Row(what, f"{line['steps_per_s']:.0f} steps/s, {settled}, {line['at_once']:g} at once{sm}"))
    fixed = [line for line in whole if line["way"] != FOUND]
    found = next((line for line in whole if line["way"] == FOUND), None)
    if not fixed or found is None:
        return [*rows, Row(f"{kind}: number found against the best fixed one", "not measured")]
    goal = f">= {1 - TOLERANCE:.2f}"
    for words, name in (("all of the window", "steps_per_s"), ("second half of it", "settled_steps_per_s")):
        best = max(fixed, key=lambda line: line[name])
        ratio = found[name] / best[name]
        what = f"{kind}: found against {best['way']} at once, {words}"
        rows.append(Row(what, f"{ratio:.3f}", goal, ratio >= 1 - TOLERANCE))
    best = max(fixed, key=lambda line: line["steps"])
    rows += _rows_of_work(kind, traces[kind, FOUND], traces[kind, best["way"]], best["way"])
    return rows


def _rows_of_work(kind: str, found: Sequence[Trace], best: Sequence[Trace], way: str) -> list[Row]:
    """Compare how long the same work took, the most that both did."""
    work = min(sum(trace.done[-1] for trace in traces) for traces in (found, best))
    found_end_s, best_end_s = time_until(found, work), time_until(best, work)
    if found_end_s is None or best_end_s is None:
        return []
    found_s, best_s = found_end_s - first_step_s(found), best_end_s - first_step_s(best)
    ratio = found_s / best_s
    measured = f"{found_s:.1f} s / {best_s:.1f} s = {ratio:.3f}"
    what = f"{kind}: the same {work} steps, found against {way} at once"
    return [Row(what, measured, f"<= {1 + TOLERANCE:.2f}", ratio <= 1 + TOLERANCE)]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_concurrency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="new folder for files and state (default: a temporary one)")
    parser.add_argument("--kinds", default="small,large", help="which sizes of trials (default: small,large)")
    parser.add_argument("--ways-small", default="4,8,12,2,1", help="fixed numbers at once, in this order")
    parser.add_argument("--ways-large", default="1,2,4", help="fixed numbers at once, in this order")
    parser.add_argument("--window-small", type=float, default=14.0, help="seconds for each way (default: 14)")
    parser.add_argument("--window-large", type=float, default=26.0, help="seconds for each way (default: 26)")
    parser.add_argument("--steps-small", type=int, default=1500, help="steps of a small trial (default: 1500)")
    parser.add_argument("--steps-large", type=int, default=800, help="steps of a large trial (default: 800)")
    parser.add_argument("--limit-s", type=float, default=420.0, help="begin no way that would end later (default: 420)")
    parser.add_argument("--mps", action="store_true", help="run the trials as clients of MPS")
    parser.add_argument("--dry", action="store_true", help="tiny trials on the CPU: shows only that it runs")
    given = parser.parse_args(arguments)
    given.kinds = given.kinds.split(",")
    if not set(given.kinds) <= {"small", "large"}:
        parser.error("--kinds takes small, large, or both with a comma")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the goals, and return 1 when one was missed or not measured, 2 where there is no card."""
    given = parse(arguments)
    reason = "" if given.dry else obstacle()
    if reason:
        print(f"error: it needs an NVIDIA GPU with torch: {reason}; --dry runs on the CPU", file=sys.stderr)
        return 2
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="vrampool-bench-") as folder:
        out = (given.out or Path(folder)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        bench = Bench(out, given.limit_s, dry=given.dry, mps=given.mps)
        bench.run(kinds(given))
        rows = [row for name in given.kinds for row in rows_of(name, bench.found, bench.traces)]
        if bench.left_out:
            rows.append(Row("left out, for they would have ended too late", ", ".join(bench.left_out)))
        (out / "rows.json").write_text(json.dumps([row.to_json() for row in rows], indent=1))
    where = "on the CPU, dry" if given.dry else "under MPS" if given.mps else "in time slices"
    Console(width=140).print(table(rows, f"Trials at once, found against fixed, {where}"))
    judged = [row for row in rows if row.kept is not None]
    return 0 if given.dry or (len(judged) == 3 * len(given.kinds) and all(row.kept for row in judged)) else 1


if __name__ == "__main__":
    sys.exit(main())
