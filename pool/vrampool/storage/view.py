"""A storage that looks at another one: the common ground of `QueueView` and `WorkerView`."""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping, Sequence
from typing import Any

from optuna._typing import JSONSerializable
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

from vrampool.storage.pool_storage import PoolStorage


class StorageView(BaseStorage):
    """Passes every call on to the storage underneath. A view belongs to one thread."""

    def __init__(self, base: PoolStorage) -> None:
        self._base = base

    @property
    def base(self) -> PoolStorage:
        return self._base

    # ---- studies ------------------------------------------------------------------------------------

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        return self._base.create_new_study(directions, study_name)

    def delete_study(self, study_id: int) -> None:
        self._base.delete_study(study_id)

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        self._base.set_study_user_attr(study_id, key, value)

    def set_study_system_attr(self, study_id: int, key: str, value: JSONSerializable) -> None:
        self._base.set_study_system_attr(study_id, key, value)

    def get_study_id_from_name(self, study_name: str) -> int:
        return self._base.get_study_id_from_name(study_name)

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._base.get_study_name_from_id(study_id)

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return self._base.get_study_directions(study_id)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return self._base.get_study_user_attrs(study_id)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return self._base.get_study_system_attrs(study_id)

    def get_all_studies(self) -> list[FrozenStudy]:
        return self._base.get_all_studies()

    # ---- trials -------------------------------------------------------------------------------------

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        return self._base.create_new_trial(study_id, template_trial)

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        self._base.set_trial_param(trial_id, param_name, param_value_internal, distribution)

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        return self._base.get_trial_id_from_study_id_trial_number(study_id, trial_number)

    def get_trial_number_from_id(self, trial_id: int) -> int:
        return self._base.get_trial_number_from_id(trial_id)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        return self._base.set_trial_state_values(trial_id, state, values)

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        self._base.set_trial_intermediate_value(trial_id, step, intermediate_value)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._base.set_trial_user_attr(trial_id, key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: JSONSerializable) -> None:
        self._base.set_trial_system_attr(trial_id, key, value)

    def set_trial_attrs(
        self, trial_id: int, user_attrs: Mapping[str, Any], system_attrs: Mapping[str, Any] | None = None
    ) -> None:
        self._base.set_trial_attrs(trial_id, user_attrs, system_attrs)

    def move_trial(
        self,
        trial_id: int,
        before: TrialState,
        after: TrialState,
        *,
        values: Sequence[float] | None = None,
        user_attrs: Mapping[str, Any] | None = None,
        system_attrs: Mapping[str, Any] | None = None,
        claimed_only: bool = False,
    ) -> bool:
        return self._base.move_trial(
            trial_id,
            before,
            after,
            values=values,
            user_attrs=user_attrs,
            system_attrs=system_attrs,
            claimed_only=claimed_only,
        )

    def get_trial(self, trial_id: int) -> FrozenTrial:
        return self._base.get_trial(trial_id)

    def get_trial_user_attrs(self, trial_id: int) -> dict[str, Any]:
        return self._base.get_trial_user_attrs(trial_id)

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        return self._base.get_trial_system_attrs(trial_id)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return self._base.get_all_trials(study_id, deepcopy, states)

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        return self._base.get_best_trial(study_id)

    def remove_session(self) -> None:
        self._base.remove_session()


def died_unborn(trial: FrozenTrial) -> bool:
    """True for a trial that failed before it asked for a parameter: it tells a sampler nothing.

    One of them makes `BruteForceSampler` fail for good, so both views hide them from whoever reads by state.
    """
    return trial.state == TrialState.FAIL and not trial.params


def copy_trial(trial: FrozenTrial) -> FrozenTrial:
    """Return a copy whose state and dicts may be changed. Values of the dicts are shared."""
    twin = copy.copy(trial)
    twin.params = dict(trial.params)
    twin.distributions = dict(trial.distributions)
    twin.user_attrs = dict(trial.user_attrs)
    twin.system_attrs = dict(trial.system_attrs)
    twin.intermediate_values = dict(trial.intermediate_values)
    return twin
