"""One way of running the sweep, in a process of its own: `python -m benchmarks.sweep.way NAME PLAN OUT LIMIT_S`.

Attempts are added to OUT/attempts.jsonl as they come; the row that sums them up is the last line of standard output.
Children of multiprocessing import this file again, so it loads little by itself.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.sweep.plan import Plan
    from benchmarks.sweep.summary import Attempt
    from benchmarks.sweep.watching import CardWatch
    from benchmarks.sweep.ways import Way

Row = dict[str, Any]


def main() -> None:
    from benchmarks.sweep.ending import end_with_parent, exit_on_signals
    from benchmarks.sweep.plan import Plan
    from benchmarks.sweep.watching import Card, CardWatch
    from benchmarks.sweep.ways import way_of

    end_with_parent()
    exit_on_signals()
    name, plan_file, out, limit_s = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    way, plan = way_of(name), Plan.read(plan_file)
    watch = CardWatch(None if plan.dry else Card())
    watch.start()
    try:
        if way.is_pool:
            row = run_pool(way, plan, plan_file, out, limit_s, watch)
        else:
            row = run_by_hand(way, plan, out, limit_s, watch)
    finally:
        watch.stop()
    print(json.dumps({"way": name, "plan": plan.mark, **row}), flush=True)


def run_by_hand(way: Way, plan: Plan, out: Path, limit_s: float, watch: CardWatch) -> Row:
    """Run it in children of this process."""
    from benchmarks.sweep import by_hand
    from benchmarks.sweep.summary import summarise

    with ExitStack() as stack:
        if way.mps:
            stack.enter_context(_mps_clients())
        runner = by_hand.ByHand(plan, way.start, lambda attempt: _note(out, way.name, [attempt]))
        stack.callback(runner.close)
        startup_s = runner.warm_up()
        if way.kind == "oracle":  # what cannot run it refuses at once
            trials = [trial for trial in plan.trials if trial.id not in plan.beyond]
            ran = runner.run(trials, by_hand.ORACLE_AT_ONCE, by_hand.packing(plan.card_gib), limit_s)
        else:
            ran = runner.run(plan.trials, way.at_once or 1, by_hand.first_of_all, limit_s)
    _draw(out, way.name, ran.attempts)
    row = summarise(ran.attempts, plan.order, plan.beyond, ran.makespan_s, cut=ran.cut)
    return row | watch.facts(ran.began_s, ran.began_s + ran.makespan_s) | {"startup_s": round(startup_s, 2)}


def run_pool(way: Way, plan: Plan, plan_file: Path, out: Path, limit_s: float, watch: CardWatch) -> Row:
    """Run it in a pool."""
    from benchmarks.sweep import by_pool
    from benchmarks.sweep.breakdown import break_down
    from benchmarks.sweep.summary import summarise

    settings = {"start_method": way.start, "mps": "on" if way.mps else "off", **plan.pool_settings}
    state = out / f"state-{way.name}"
    shutil.rmtree(state, ignore_errors=True)  # of an earlier run: this one's pool knows nothing
    seen = by_pool.run(plan, plan_file, state, settings, limit_s)
    _note(out, way.name, seen.attempts)
    _draw(out, way.name, seen.attempts)
    _keep(out / f"seen-{way.name}.json", seen)
    row = summarise(seen.attempts, plan.order, plan.beyond, seen.makespan_s, cut=seen.cut)
    row |= watch.facts(seen.began_s, seen.began_s + seen.makespan_s)
    row |= {"startup_s": seen.startup_s, "warm_s": seen.warm_s, "state": seen.state}
    span = (seen.began_epoch_s, seen.began_epoch_s + seen.makespan_s)
    row["breakdown"] = break_down(
        seen.attempts, seen.samples, seen.looks, seen.releases, budget_bytes=seen.budget_bytes, span=span
    )
    return row


def _mps_clients() -> ExitStack:
    """Start an MPS daemon and make this process's children its clients; both end with the returned block."""
    import os

    from benchmarks.sweep.watching import Card
    from vrampool_worker.devices.mps import PROGRAM, MpsDaemon, find_program

    program = find_program(os.environ)
    if program is None:
        raise RuntimeError(f"{PROGRAM} is not installed")
    with ExitStack() as stack:
        daemon = MpsDaemon(Card().uuid, program, os.environ)
        stack.callback(daemon.close)
        daemon.start()
        daemon.await_start()
        variables = daemon.client_env(None)
        os.environ.update(variables)
        stack.callback(lambda: [os.environ.pop(name, None) for name in variables])
        return stack.pop_all()


def _note(out: Path, way: str, attempts: list[Attempt]) -> None:
    with (out / "attempts.jsonl").open("a") as file:
        for attempt in attempts:
            file.write(json.dumps({"way": way, **attempt.to_json()}) + "\n")


def _draw(out: Path, way: str, attempts: list[Attempt]) -> None:
    from benchmarks.sweep.report import timeline

    (out / f"timeline-{way}.md").write_text(timeline(attempts))


def _keep(file: Path, seen: Any) -> None:
    """Keep samples and looks beside the table: they say more than their means."""
    looks = [vars(look) for look in seen.looks]
    times = {"began_epoch_s": seen.began_epoch_s, "written_s": time.time()}
    file.write_text(json.dumps({**times, "samples": seen.samples, "looks": looks, "releases": seen.releases}))


if __name__ == "__main__":
    main()
