"""Objectives that hold what their parameters say. The tests run them in pools."""

from __future__ import annotations

import mmap
import time

import optuna

MIB = 1024**2


def hold(blocks: int) -> mmap.mmap:
    """Return as many MiB, all of them written to."""
    held = mmap.mmap(-1, blocks * MIB)
    for at in range(0, len(held), mmap.PAGESIZE):
        held[at] = 1
    return held


def branches(trial: optuna.Trial) -> float:
    """Holds more in one of two branches, which has a parameter of its own; more still in its second round."""
    kind = trial.suggest_categorical("kind", ["plain", "deep"])
    blocks = trial.suggest_int("blocks", 10, 100)
    if kind == "deep":
        blocks += trial.suggest_int("depth", 1, 100)
    trial.suggest_float("rate", 0.0, 1.0)
    held = [hold(blocks)]
    for step in range(1000):
        trial.report(1.0, step)
        if trial.should_prune():
            raise optuna.TrialPruned
        if step == 0:
            held.append(hold(40))
        time.sleep(0.2)
    return float(len(held))


def never_ends(trial: optuna.Trial) -> float:
    """Reports and never asks whether it should stop."""
    held = hold(trial.suggest_int("blocks", 10, 100))
    for step in range(100_000):
        trial.report(float(held[0]), step)
        time.sleep(0.2)
    return 1.0


def fails_at_once(trial: optuna.Trial) -> float:
    """Raises before it suggests anything."""
    raise ValueError("no data here")
