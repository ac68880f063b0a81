"""`make chaos`: a long random schedule of faults over several hosts; prints what was injected, lost and doubled.

make chaos                    200 faults, from a seed that is printed
make chaos SEED=7             the same schedule again
make chaos FAULTS=30          a shorter one
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import optuna
from hosts.chaos import Chaos, Tally, draw
from hosts.faults import KINDS, NEED_A_CABLE, kinds_for, start
from hosts.many import ManyHosts, many_hosts
from hosts.network import Network, why_not

HOSTS = ("h1", "h2", "h3")
_OWN = ("VRAMPOOL_", "GPU_MEM_FRACTION", "CUDA_VISIBLE_DEVICES")


def main() -> int:
    """Play a schedule. Returns 1 when anything was lost, doubled or broken."""
    parser = argparse.ArgumentParser(prog="make chaos", description="Play a random schedule of faults.")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--trials", type=int, default=15, help="of each study")
    parser.add_argument("--step", type=float, default=0.3, metavar="S", help="a trial has four of them")
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    for name in list(os.environ):  # the user's own settings stay out of it
        if name.startswith(_OWN):
            del os.environ[name]
    signal.signal(signal.SIGTERM, lambda _signum, _frame: sys.exit(143))  # so that nothing is left behind
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    reason = why_not()
    say(f"seed {seed}, {asked.faults} faults, {len(HOSTS)} hosts; again with: make chaos SEED={seed}")
    if reason is not None:
        say(f"{reason}: all hosts are this machine, and without: {', '.join(NEED_A_CABLE)}")
    folder = Path(tempfile.mkdtemp(prefix="vrampool-chaos-"))
    network = Network(HOSTS) if reason is None else None
    with many_hosts(folder, network, *HOSTS) as pool:
        start(pool)
        for host in pool.hosts.values():
            host.await_ready()
        faults = draw(seed, asked.faults, kinds_for(pool))
        chaos = Chaos(pool, faults, seed=seed, n_trials=asked.trials, step_s=asked.step, say=say)
        try:
            tally = chaos.run()
        except BaseException:
            print(table(chaos.tally, seed), flush=True)
            say(f"seed {seed} did not come to its end; logs are in {folder}")
            raise
        print(table(tally, seed), flush=True)
        if not tally.clean:
            show(pool, tally)
    if not tally.clean:
        say(f"seed {seed} failed; logs are in {folder}; again with: make chaos SEED={seed} FAULTS={asked.faults}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def say(line: str) -> None:
    print(line, flush=True)


def show(pool: ManyHosts, tally: Tally) -> None:
    for title, lines in (("lost", tally.lost), ("doubled", tally.doubled), ("broken", tally.broken)):
        for line in lines:
            say(f"{title}: {line}")
    (pool.folder / "logs.txt").write_text(pool.logs())


def table(tally: Tally, seed: int) -> str:
    """Return what came of it, as `docs/measurements.md` has it."""
    head = f"{datetime.date.today()}, {os.cpu_count()} cores, seed {seed}, {tally.took_s:.0f} s"
    rows = [
        "",
        head,
        "",
        "| what happened | times |",
        "|---|---|",
        *(f"| {KINDS[kind]} | {tally.injected[kind]} |" for kind in KINDS if tally.injected[kind]),
        f"| **faults** | **{sum(tally.injected.values())}** |",
        "",
        "| what came of it | |",
        "|---|---|",
        f"| studies | {tally.studies} |",
        f"| trials asked for | {tally.roots} |",
        f"| attempts, retries among them | {tally.trials} |",
        f"| lost | {len(tally.lost)} |",
        f"| doubled | {len(tally.doubled)} |",
        f"| other invariants broken | {len(tally.broken)} |",
        "",
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
