"""Runs the checks of `trial_checks` where the trial is: in the test's process for Optuna's classes, in a child for the
proxy."""

from __future__ import annotations

import traceback
from typing import Any

from parity.trial_checks import CHECKS, Check

SETUPS = tuple(dict.fromkeys(item.setup for item in CHECKS))


def applying(setup: str, kind_of_trial: str) -> list[Check]:
    return [item for item in CHECKS if item.setup == setup and kind_of_trial not in item.excused]


def run_all(trial: Any, setup: str, kind_of_trial: str) -> dict[str, str]:
    """Run the checks of a setup on one trial. Returns what went wrong by the check's name; empty texts are good."""
    found = {}
    for item in applying(setup, kind_of_trial):
        try:
            item.run(trial)
        except BaseException:
            found[item.name] = traceback.format_exc()
        else:
            found[item.name] = ""
    return found


# Objectives, one for each setup: what the child of a proxy runs.


def in_child_given(trial):
    trial.set_user_attr("found", run_all(trial, "given", "ProxyTrial"))
    return 1.0


def in_child_pruner(trial):
    trial.set_user_attr("found", run_all(trial, "pruner", "ProxyTrial"))
    return 1.0


def in_child_relative(trial):
    trial.set_user_attr("found", run_all(trial, "relative", "ProxyTrial"))
    return 1.0


def in_child_several(trial):
    trial.set_user_attr("found", run_all(trial, "several", "ProxyTrial"))
    return 1.0, 2.0
