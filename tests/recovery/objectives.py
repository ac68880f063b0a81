"""Objectives of these tests. Each writes into a log that survives it when it begins and when it ends, so that a second
run of one trial is seen even where the storage shows nothing of it. Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

STEPS = 4


def note(word: str, trial) -> None:
    """Add a line to the execution log: one write, so that lines of several processes never mix."""
    handle = os.open(os.environ["EXECUTION_LOG"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.write(handle, f"{word} {trial.number} {os.getpid()}\n".encode())
    finally:
        os.close(handle)


def value_of(params) -> float:
    """The value is a function of the parameters alone: the storage by itself shows when the two were mixed up."""
    last = params["u"] if params["kind"] == "a" else 2 * params["v"]
    return (params["x"] - 1) ** 2 + abs(params["n"] - 5) * 0.3 + last


def report_of(params, step: int) -> float:
    return value_of(params) + STEPS - step


def search(trial):
    """A short study's objective: a conditional search space, reports, pruning."""
    note("started", trial)
    params = {
        "x": trial.suggest_float("x", -5, 5),
        "n": trial.suggest_int("n", 1, 9),
        "kind": trial.suggest_categorical("kind", ["a", "b"]),
    }
    branch = "u" if params["kind"] == "a" else "v"
    params[branch] = trial.suggest_float(branch, 0, 1)
    for step in range(STEPS):
        time.sleep(float(os.environ.get("STEP_S", "0.02")))
        trial.report(report_of(params, step), step)
        if trial.should_prune():
            from optuna import TrialPruned  # only here: it takes longer to import than a trial

            note("ended", trial)
            raise TrialPruned()
    note("ended", trial)
    return value_of(params)


def wait_at_gate(trial):
    """Draw, report, and end when a file is there."""
    note("started", trial)
    x = trial.suggest_float("x", 0, 1)
    trial.report(x, 0)
    note("waiting", trial)
    deadline_s = time.monotonic() + 120
    while not Path(os.environ["GATE"]).exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    note("ended", trial)
    return x


def one(trial):
    note("started", trial)
    note("ended", trial)
    return 1.0


def hold_the_interpreter(trial):
    """A49: nothing else in this process runs for four seconds, neither thread nor signal handler."""
    note("started", trial)
    ctypes.PyDLL(None).usleep(4_000_000)  # PyDLL keeps the lock of the interpreter during the call
    note("ended", trial)
    return 1.0


def kill_itself(trial):
    note("started", trial)
    os.kill(os.getpid(), signal.SIGKILL)


def kill_the_process_above(trial):
    note("started", trial)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def kill_its_worker(trial):
    """The worker is two above: between them is the trial's keeper."""
    note("started", trial)
    above = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    os.kill(int(above[1]), signal.SIGKILL)
    time.sleep(60)
