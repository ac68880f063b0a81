"""Objectives that go on where an earlier attempt has stopped. Standard library only."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import vrampool

STEPS = 6


def note(line: str) -> None:
    with open(os.environ["NOTES"], "a") as file:
        file.write(line + "\n")


def train(trial):
    """Count to STEPS with a checkpoint after each; stop at one of them until a file is there."""
    checkpoint = vrampool.checkpoint(trial)
    first = 0
    if checkpoint.latest is not None:
        first = int((checkpoint.latest / "step").read_text()) + 1
    note(f"attempt {checkpoint.attempt} begins with step {first}")
    for step in range(first, STEPS):
        note(f"step {step}")
        with checkpoint.save() as folder:
            (folder / "step").write_text(str(step))
        while step == 2 and not Path(os.environ["GATE"]).exists():
            time.sleep(0.01)
    trial.set_user_attr("folder", os.fspath(checkpoint))
    return float(first)


def kill_itself_once(trial):
    """Die by a signal in the first attempt, half way through a second checkpoint."""
    checkpoint = vrampool.checkpoint(trial, keep="KEEP" in os.environ)
    if checkpoint.latest is not None:
        trial.set_user_attr("found", (checkpoint.latest / "state").read_text())
        trial.set_user_attr("folder", os.fspath(checkpoint))
        return 1.0
    with checkpoint.save() as folder:
        (folder / "state").write_text("whole")
    with checkpoint.save() as folder:
        (folder / "state").write_text("half")
        os.kill(os.getpid(), 9)
    return 0.0


def tell_found(trial):
    """What an objective finds that never had a checkpoint."""
    checkpoint = vrampool.checkpoint(trial)
    trial.set_user_attr("latest", checkpoint.latest)
    with checkpoint.save() as folder:
        (folder / "state").write_text("x")
    trial.set_user_attr("folder", os.fspath(checkpoint))
    return 1.0


def hear_stop(tell):
    """Have `tell` called too when the pool asks the trial to stop."""
    heard = signal.getsignal(signal.SIGTERM)

    def hear(number, frame):
        tell()
        heard(number, frame)

    signal.signal(signal.SIGTERM, hear)


def save_slowly(trial):
    """Be asked to stop in the middle of a checkpoint, and say so."""
    checkpoint = vrampool.checkpoint(trial)
    if checkpoint.latest is not None:
        trial.set_user_attr("found", (checkpoint.latest / "state").read_text())
        return 1.0
    with checkpoint.save() as folder:
        note("saving")
        hear_stop(lambda: note("asked to stop"))
        while not Path(os.environ["GATE"]).exists():
            time.sleep(0.01)
        (folder / "state").write_text("whole")
    while True:
        time.sleep(0.01)
