"""Objectives that run in the test's own process and in the pool's. Most need only Python, so they start at once."""

from __future__ import annotations

import math
import os
import time


class Bad(Exception):
    """Cannot be made from its text, nor pickled."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def number(trial):
    return float(trial.number)


def draw(trial):
    return trial.suggest_float("x", 0, 1)


def enqueued(trial):
    return trial.suggest_float("x", 0, 10) + trial.suggest_int("n", 1, 3)


def prune(trial):
    import optuna

    if trial.number == 0:
        raise optuna.TrialPruned
    trial.report(0.25, 1)
    trial.report(0.75, 3)
    if trial.number == 1:
        raise optuna.TrialPruned("no hope")
    if trial.number == 2:
        trial.report(math.nan, 7)
        raise optuna.TrialPruned
    return 1.0


def two_values(trial):
    trial.suggest_int("n", trial.number, trial.number)
    if trial.number == 1:
        return 1.0
    if trial.number == 2:
        return 1.0, math.nan
    return trial.number, -trial.number


def attributes(trial):
    trial.set_user_attr("note", {"n": [trial.number, None]})
    trial.set_user_attr("note2", "first")
    trial.set_user_attr("note2", "second")
    trial.set_constraint("size", 1.0 - trial.number)
    return -1.0 if trial.number == 0 else 0.0


def sometimes(trial):
    if trial.number == 1:
        raise ValueError("the second one")
    return 0.0


def bad(trial):
    if trial.number == 1:
        raise Bad("one", "two")
    return 0.0


def interrupted(trial):
    raise KeyboardInterrupt


def leaving(trial):
    raise SystemExit(3)


ODD = [None, math.nan, "abc", (1.0, 2.0), [], math.inf, True, 3, [1.5], {"a": 1}]


def odd_values(trial):
    return ODD[trial.number]


def stop_at_2(trial):
    if trial.number == 2:
        trial.study.stop()
    return float(trial.number)


def conditional(trial):
    if trial.number % 2:
        kind = trial.suggest_categorical("kind", ["a"])
        return trial.suggest_float("deep", 0, 1) + len(kind)
    return float(trial.suggest_int("flat", 2, 4))


def growing(trial):
    value = trial.suggest_int("x", trial.number, trial.number + 2)
    assert trial.number <= value <= trial.number + 2
    other = trial.suggest_float("y", 0, 1 + trial.number)
    assert 0 <= other <= 1 + trial.number
    return float(value)


def changed_choices(trial):
    return float(len(trial.suggest_categorical("kind", ["a", "b", *"c" * trial.number])))


def grid(trial):
    return trial.suggest_int("x", 1, 3) * 10 + trial.suggest_categorical("y", [1, 2])


def tree(trial):
    if trial.suggest_categorical("kind", ["flat", "deep"]) == "flat":
        return 0.0
    return float(trial.suggest_int("n", 1, 4))


def reports(trial):
    import optuna

    for step in range(4):
        trial.report(float(trial.number * 10 + step), step)
        if trial.should_prune():
            raise optuna.TrialPruned(f"at {step}")
    return float(trial.number)


def read_study(trial):
    study = trial.study
    trial.set_user_attr("directions", [direction.name for direction in study.directions])
    trial.set_user_attr("attrs", study.user_attrs)
    trial.set_user_attr("metric_names", study.metric_names)
    trial.set_user_attr("kinds", [type(study.sampler).__name__, type(study.pruner).__name__])
    trial.set_user_attr("seen", [[other.number, other.state.name, other.values] for other in study.trials])
    trial.set_user_attr("best", study.best_value if trial.number else None)
    return float(trial.number)


def process(trial):
    trial.set_user_attr("pid", os.getpid())
    return float(trial.number)


def slow(trial):
    time.sleep(0.3)
    return trial.suggest_float("x", 0, 1)


def wait_for_file(trial):
    """Wait until the test lets it go; a trial that nobody lets go gives up."""
    end_s = time.monotonic() + 60
    while not os.path.exists(os.environ["PARITY_GATE"]):
        time.sleep(0.02)
        assert time.monotonic() < end_s
    return float(trial.number)


def look(trial):
    """Something for every sampler and pruner to do, and what the trial sees of them."""
    import optuna

    trial.set_user_attr("kinds", [type(trial.study.sampler).__name__, type(trial.study.pruner).__name__])
    x = trial.suggest_float("x", 0, 1, step=0.5)
    trial.suggest_int("n", 1, 2)
    trial.suggest_categorical("kind", ["a", "b"])
    for step in range(3):
        trial.report(x, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return x


def chance(trial):
    import random

    trial.suggest_float("x", 0, 1)
    return random.random()


def counted(trial):
    """Write down that it began, then wait until the test lets it go."""
    gate = os.environ["PARITY_GATE"]
    trial.suggest_float("x", 0, 1)
    with open(os.path.splitext(gate)[0] + ".log", "a") as log:
        log.write(f"{trial.number}\n")
    return wait_for_file(trial)


def attempt(trial):
    return trial.user_attrs["vrampool:mark"]["attempt"]


def killed_twice(trial):
    import signal

    trial.suggest_float("x", 0, 1)
    trial.report(attempt(trial), 0)
    trial.report(attempt(trial), 1)
    if attempt(trial) == 1:
        trial.set_user_attr("from", "attempt 1")
    trial.set_user_attr("note", f"n{attempt(trial)}")
    if attempt(trial) < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def killed_always(trial):
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def grid_killed_once(trial):
    import signal

    if trial.number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return grid(trial)


def leave_everything(trial):
    x = trial.suggest_float("x", 0, 1)
    time.sleep(0.3 if trial.number % 3 == 0 else 0.0)
    trial.set_user_attr("number", trial.number)
    trial.set_constraint("size", -trial.number)
    trial.report(0.0, 0)
    trial.report(x, 1)
    return x
