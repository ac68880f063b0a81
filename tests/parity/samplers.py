"""Samplers and pruners of a user's own, given by import path."""

from __future__ import annotations

import optuna


class Broken(optuna.samplers.RandomSampler):
    """Raises when it is asked for a point."""

    def sample_independent(self, *arguments):
        raise ZeroDivisionError("no points today")


class Middle(optuna.samplers.RandomSampler):
    """Always proposes the middle."""

    def sample_independent(self, study, trial, name, distribution):
        return (distribution.low + distribution.high) / 2


class AtSecondStep(optuna.pruners.BasePruner):
    """Prunes every trial at its second report."""

    def prune(self, study, trial):
        return len(trial.intermediate_values) >= 2


def small_steps():
    return optuna.samplers.CmaEsSampler(sigma0=0.1, seed=1)
