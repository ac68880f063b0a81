"""The storage every process of a pool opens: Optuna's cache of finished trials over a `PoolDatabase`."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from optuna.storages import _CachedStorage
from optuna.storages._cached_storage import _StudyInfo
from optuna.trial import FrozenTrial, TrialState

from vrampool.storage.database import PoolDatabase


class PoolStorage(_CachedStorage):
    """Optuna's cached storage with the writes that must happen together. Made by `open_storage`.

    It may be used by several threads, as Optuna's may.
    """

    def __init__(self, database: PoolDatabase) -> None:
        super().__init__(database)
        self._database = database

    @property
    def database(self) -> PoolDatabase:
        return self._database

    @property
    def url(self) -> str:
        """The URL it was opened by, complete, with its password: for opening it again, never for a message."""
        return self._database.url

    def create_waiting(
        self,
        study_id: int,
        user_attrs: Mapping[str, Any],
        system_attrs: Mapping[str, Any] | None = None,
        *,
        retry_of: int | None = None,
    ) -> FrozenTrial:
        """Create a WAITING trial with its attributes in one write; see `PoolDatabase.create_waiting`."""
        trial = self._database.create_waiting(study_id, user_attrs, system_attrs or {}, retry_of=retry_of)
        self.remember(study_id, trial)
        return trial

    def remember(self, study_id: int, trial: FrozenTrial) -> None:
        """Note where a trial belongs, so that its parameters can be set without all trials being read first."""
        with self._lock:
            study = self._studies.setdefault(study_id, _StudyInfo())
            # A newer state may be cached already: finished trials are never read again.
            if (known := study.trials.get(trial.number)) is None or not known.state.is_finished():
                self._add_trials_to_cache(study_id, [trial])

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
        """Compare-and-set a trial's state with what belongs to it; see `PoolDatabase.move_trial`."""
        return self._database.move_trial(
            trial_id,
            before,
            after,
            values=values,
            user_attrs=user_attrs,
            system_attrs=system_attrs,
            claimed_only=claimed_only,
        )

    def set_trial_attrs(
        self, trial_id: int, user_attrs: Mapping[str, Any], system_attrs: Mapping[str, Any] | None = None
    ) -> None:
        """Write several attributes in one transaction; raises as `PoolDatabase.set_trial_attrs` does."""
        self._database.set_trial_attrs(trial_id, user_attrs, system_attrs)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        if deepcopy or states is not None:
            return super().get_all_trials(study_id, deepcopy, states)
        # Optuna sorts trials by what a function says of each: at 10 000 that takes longer than reading what is new.
        self._read_trials_from_remote_storage(study_id)
        with self._lock:
            trials = self._studies[study_id].trials
            return [trials[number] for number in sorted(trials)]

    # Optuna's defaults read the whole trial, six queries, for any one of these.

    def get_trial_number_from_id(self, trial_id: int) -> int:
        with self._lock:
            known = self._trial_id_to_study_id_and_number.get(trial_id)
        return known[1] if known is not None else super().get_trial_number_from_id(trial_id)

    def get_trial_user_attrs(self, trial_id: int) -> dict[str, Any]:
        with self._lock:
            trial = self._get_cached_trial(trial_id)
        return self._database.get_trial_user_attrs(trial_id) if trial is None else trial.user_attrs

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        with self._lock:
            trial = self._get_cached_trial(trial_id)
        return self._database.get_trial_system_attrs(trial_id) if trial is None else trial.system_attrs

    def remove_session(self) -> None:
        self._database.remove_session()

    def close(self) -> None:
        """Close this thread's session and all idle connections. Opens again by itself when it is used."""
        self._database.remove_session()
        self._database.engine.dispose()
