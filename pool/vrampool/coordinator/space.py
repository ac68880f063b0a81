"""The search space known so far, in the objective's own order: what is sampled at ask time and kept as a plan."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.distributions import BaseDistribution
from optuna.samplers import BruteForceSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState


class KnownSpace:
    """Finds the distributions to plan for a study.

    Pruned trials count: a study that begins with pruned ones would have no space for long. Before anything has
    finished, the distributions that running trials have asked for so far are taken.
    """

    def __init__(self) -> None:
        self._intersection = IntersectionSearchSpace(include_pruned=True)

    def of(self, study: Study, trials: Sequence[FrozenTrial]) -> dict[str, BaseDistribution]:
        """Return name -> distribution; empty when nothing is known, or when the sampler must not be planned for."""
        if isinstance(study.sampler, BruteForceSampler):
            return {}  # it walks a tree of what is really suggested; a plan would be refused as a mismatch
        space = self._intersection.calculate(study)
        if space:
            return {name: space[name] for name in _order(trials, space)}
        if any(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in trials):
            return {}
        running = [trial.distributions for trial in trials if trial.state == TrialState.RUNNING and trial.distributions]
        if not running:
            return {}
        common = {name: value for name, value in running[0].items() if all(name in other for other in running)}
        return {name: value for name, value in common.items() if not value.single()}


def _order(trials: Sequence[FrozenTrial], space: dict[str, BaseDistribution]) -> list[str]:
    """Return the names of `space` as the newest finished trial asked for them; samplers depend on the order."""
    for trial in reversed(trials):
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and all(
            name in trial.distributions for name in space
        ):
            return [name for name in trial.distributions if name in space]
    return list(space)
