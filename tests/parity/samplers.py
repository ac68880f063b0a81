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
        choices = getattr(distribution, "choices", None)
        return choices[0] if choices else (distribution.low + distribution.high) // 2 or 0.5


class Noting(optuna.samplers.RandomSampler):
    """Writes on each trial how many finished and how many unfinished ones it was asked for beside."""

    def before_trial(self, study, trial):
        if "noted" not in trial.system_attrs:
            states = [other.state for other in study._storage.get_all_trials(study._study_id, deepcopy=False)]
            noted = [sum(state.is_finished() for state in states), sum(not state.is_finished() for state in states)]
            study._storage.set_trial_system_attr(trial._trial_id, "noted", noted)


class AtSecondStep(optuna.pruners.BasePruner):
    """Prunes every trial at its second report."""

    def prune(self, study, trial):
        return len(trial.intermediate_values) >= 2


def small_steps():
    return optuna.samplers.CmaEsSampler(sigma0=0.1, seed=1)
