"""Objectives of these tests. Standard library only."""

from __future__ import annotations

import os
import time
from pathlib import Path


def one(trial):
    trial.report(0.5, 0)
    print("one")
    return trial.suggest_float("x", 0, 1)


def die(trial):
    os.kill(os.getpid(), 9)


def wait_at_gate(trial):
    print("waiting", flush=True)
    while not Path(os.environ["GATE"]).exists():
        time.sleep(0.01)
    return 1.0


def look_around(trial):
    """What a trial can read in its own process and in its keeper's: environment and arguments."""
    found = {}
    for pid in (os.getpid(), os.getppid()):
        for name in ("environ", "cmdline"):
            found[f"{pid} {name}"] = Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    trial.set_user_attr("found", found)
    return 1.0
