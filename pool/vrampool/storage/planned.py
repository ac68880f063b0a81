"""Plans: parameters sampled ahead, and the trial that uses them.

The coordinator samples the space known so far when it asks for a trial, so that the trial's memory can be predicted.
The values are kept as an attribute, not as parameters: parameters that an objective never asks for would spoil
conditional spaces, and Optuna hands stored parameters out unchecked even when the range has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.study import Study
from optuna.trial import BaseTrial, Trial

from vrampool.storage.marks import PLAN
from vrampool.storage.pool_storage import PoolStorage
from vrampool.storage.worker_view import WorkerView

#: {name: [internal representation, distribution as JSON text]}
Plan = dict[str, list[Any]]


def dump_plan(trial: BaseTrial) -> Plan:
    """Return the parameters of a trial that was asked for with `fixed_distributions`, fit for JSON."""
    params, distributions = trial.params, trial.distributions
    return {
        name: [distribution.to_internal_repr(params[name]), distribution_to_json(distribution)]
        for name, distribution in distributions.items()
    }


def load_plan(plan: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
    """Return a plan's values and distributions by name; two empty dicts for None."""
    distributions = {name: json_to_distribution(text) for name, (_, text) in (plan or {}).items()}
    values = {name: distributions[name].to_external_repr(value) for name, (value, _) in (plan or {}).items()}
    return values, distributions


class PlannedTrial(Trial):
    """A trial that was claimed, opened again by its worker.

    A planned value is used when the objective asks for its name and it lies in the asked range; anything else is
    sampled then and there by the study's sampler. That is Optuna's own rule for what a sampler proposes for a whole
    trial (its "relative" parameters); the plan takes the place of that proposal, so the sampler is not asked twice.
    """

    def __init__(self, study: Study, trial_id: int) -> None:
        storage = study._storage
        # Optuna empties this cache in `ask` and `tell`, but not when a trial is opened by its id.
        study._thread_local.cached_all_trials = None
        if isinstance(storage, WorkerView):
            storage.hold(study._study_id, trial_id)
        elif isinstance(storage, PoolStorage):
            storage.remember(study._study_id, storage.get_trial(trial_id))
        super().__init__(study, trial_id)
        self._plan, self._planned_space = load_plan(self._cached_frozen_trial.user_attrs.get(PLAN))
        if self._plan:
            self.relative_search_space = self._planned_space

    @property
    def relative_params(self) -> dict[str, Any]:
        return self._plan or super().relative_params

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        # Samplers must see what other workers have drawn a moment ago; only pruners may read a second behind.
        with self._fresh():
            return super()._suggest(name, distribution)

    def _fresh(self) -> AbstractContextManager[None]:
        return self.storage.fresh() if isinstance(self.storage, WorkerView) else nullcontext()
