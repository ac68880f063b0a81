"""The storage as a worker sees it: its own trials as it wrote them, all others read again once a second at most.

Reading the running trials of a study costs all the values they have ever reported, and a pruner reads them at every
step. A worker is the only one that writes to the trials it has claimed, so it can keep those in memory.
"""

from __future__ import annotations

import copy
import datetime
import json
import math
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from optuna._typing import JSONSerializable
from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from vrampool.storage.pool_storage import PoolStorage
from vrampool.storage.view import StorageView, copy_trial, died_unborn

#: Other trials may be so old when a pruner compares with them.
MAX_AGE_S = 1.0


@dataclass
class _Snapshot:
    """All trials of a study as last read, and lists picked from it by state."""

    trials: list[FrozenTrial]
    read_at_s: float
    picked: dict[tuple[TrialState, ...], list[FrozenTrial]] = field(default_factory=dict)


@dataclass
class _Held:
    study_id: int
    trial: FrozenTrial


class WorkerView(StorageView):
    """Gives a worker's studies a storage that is cheap to ask. For one thread.

    Args:
        base: The pool's storage.
        max_age_s: How old other trials may be; `fresh` reads them anew whatever their age.
        clock: Monotonic seconds.
    """

    def __init__(
        self, base: PoolStorage, *, max_age_s: float = MAX_AGE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(base)
        self._max_age_s = max_age_s
        self._clock = clock
        self._held: dict[int, _Held] = {}
        self._study_attrs: dict[tuple[int, str], tuple[dict[str, Any], float]] = {}
        self._snapshots: dict[int, _Snapshot] = {}
        self._fresh = False
        self._told: FrozenTrial | None = None

    # ---- own trials ---------------------------------------------------------------------------------

    def hold(self, study_id: int, trial_id: int) -> FrozenTrial:
        """Keep a trial that this worker has claimed in memory until it is finished or let go.

        `PlannedTrial` does this when it opens a trial.
        """
        trial = self._base.get_trial(trial_id)
        self._base.remember(study_id, trial)
        if not trial.state.is_finished():
            self._held[trial_id] = _Held(study_id, copy_trial(trial))
        return trial

    def let_go(self, trial_id: int) -> None:
        """Forget a held trial: the storage alone is right about it. Its study is read anew next time."""
        held = self._held.pop(trial_id, None)
        if held is not None:
            self._snapshots.pop(held.study_id, None)

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Read other trials anew within the block. For samplers, and around `study.tell`."""
        before, self._fresh = self._fresh, True
        try:
            yield
        finally:
            self._fresh = before

    @contextmanager
    def _writing(self, trial_id: int) -> Iterator[FrozenTrial | None]:
        held = self._held.get(trial_id)
        try:
            yield None if held is None else held.trial
        except UpdateFinishedTrialError:  # somebody failed it meanwhile
            self.let_go(trial_id)
            raise

    # ---- writing ------------------------------------------------------------------------------------

    def create_new_study(self, directions: Any, study_name: str | None = None) -> int:
        self._snapshots.clear()
        return super().create_new_study(directions, study_name)

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        self._study_attrs.clear()
        super().set_study_user_attr(study_id, key, value)

    def set_study_system_attr(self, study_id: int, key: str, value: JSONSerializable) -> None:
        self._study_attrs.clear()
        super().set_study_system_attr(study_id, key, value)

    def delete_study(self, study_id: int) -> None:
        super().delete_study(study_id)
        self._study_attrs.clear()
        self._snapshots.clear()
        self._held = {key: held for key, held in self._held.items() if held.study_id != study_id}

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        self._snapshots.pop(study_id, None)
        return super().create_new_trial(study_id, template_trial)

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        with self._writing(trial_id) as own:
            super().set_trial_param(trial_id, param_name, param_value_internal, distribution)
            if own is not None:
                own.params[param_name] = distribution.to_external_repr(param_value_internal)
                own.distributions[param_name] = distribution
            else:
                self._snapshots.clear()

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        with self._writing(trial_id) as own:
            super().set_trial_intermediate_value(trial_id, step, intermediate_value)
            if own is not None:
                own.intermediate_values[step] = intermediate_value
            else:
                self._snapshots.clear()

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        self.set_trial_attrs(trial_id, {key: value})

    def set_trial_system_attr(self, trial_id: int, key: str, value: JSONSerializable) -> None:
        self.set_trial_attrs(trial_id, {}, {key: value})

    def set_trial_attrs(
        self, trial_id: int, user_attrs: Mapping[str, Any], system_attrs: Mapping[str, Any] | None = None
    ) -> None:
        with self._writing(trial_id) as own:
            super().set_trial_attrs(trial_id, user_attrs, system_attrs)
            if own is not None:
                own.user_attrs.update(_as_stored(user_attrs))
                own.system_attrs.update(_as_stored(system_attrs or {}))
            else:
                self._snapshots.clear()

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        held = self._held.get(trial_id)
        if held is None or not state.is_finished():
            with self._writing(trial_id):
                done = super().set_trial_state_values(trial_id, state, values)
            self._moved(trial_id)
            return done
        if not self.move_trial(trial_id, TrialState.RUNNING, state, values=values):
            raise UpdateFinishedTrialError(f"trial {held.trial.number} has already finished and can not be updated")
        told = held.trial
        told.state, told.values, told.datetime_complete = state, values, datetime.datetime.now()
        self._told = told  # `study.tell` reads the trial right after: answered from here
        return True

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
        done = super().move_trial(
            trial_id,
            before,
            after,
            values=values,
            user_attrs=user_attrs,
            system_attrs=system_attrs,
            claimed_only=claimed_only,
        )
        if after != TrialState.RUNNING:  # a claim: `hold` follows, and other trials are read no sooner for it
            self._moved(trial_id)
        return done

    def _moved(self, trial_id: int) -> None:
        if trial_id in self._held:
            self.let_go(trial_id)
        else:
            self._snapshots.clear()

    # ---- reading ------------------------------------------------------------------------------------

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return self._attrs_of(study_id, "user", super().get_study_user_attrs)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return self._attrs_of(study_id, "system", super().get_study_system_attrs)

    def _attrs_of(self, study_id: int, kind: str, read: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        """Return a study's attributes, as old as other trials may be: every trial that begins asks for both kinds."""
        now_s = self._clock()
        attrs, read_at_s = self._study_attrs.get((study_id, kind), ({}, -math.inf))
        if self._fresh or now_s - read_at_s >= self._max_age_s:
            attrs = read(study_id)
            self._study_attrs[study_id, kind] = attrs, now_s
        return copy.deepcopy(attrs)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        told, self._told = self._told, None
        if told is not None and told._trial_id == trial_id:
            return told
        held = self._held.get(trial_id)
        return self._base.get_trial(trial_id) if held is None else copy_trial(held.trial)

    def get_trial_user_attrs(self, trial_id: int) -> dict[str, Any]:
        held = self._held.get(trial_id)
        return self._base.get_trial_user_attrs(trial_id) if held is None else dict(held.trial.user_attrs)

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        held = self._held.get(trial_id)
        return self._base.get_trial_system_attrs(trial_id) if held is None else dict(held.trial.system_attrs)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        snapshot = self._snapshot(study_id)
        if states is None:
            trials = self._with_own(study_id, snapshot.trials)
        else:
            wanted = tuple(state for state in TrialState if state in states)
            trials = self._picked(study_id, snapshot, wanted)
        return copy.deepcopy(trials) if deepcopy else trials

    def _snapshot(self, study_id: int) -> _Snapshot:
        now_s = self._clock()
        snapshot = self._snapshots.get(study_id)
        if snapshot is None or self._fresh or now_s - snapshot.read_at_s >= self._max_age_s:
            snapshot = _Snapshot(self._base.get_all_trials(study_id, deepcopy=False), now_s)
            self._snapshots[study_id] = snapshot
            for trial in snapshot.trials:
                # A held trial that is finished in the storage was ended by somebody else: the storage is right.
                if trial._trial_id in self._held and trial.state.is_finished():
                    del self._held[trial._trial_id]
        return snapshot

    def _with_own(self, study_id: int, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        # Copies: halving pruners read all trials, then write to the own one, and count it beside what they have read.
        own = {held.trial.number: copy_trial(held.trial) for held in self._held.values() if held.study_id == study_id}
        if not own:
            return list(trials)
        merged = [own.pop(trial.number, trial) for trial in trials]
        return merged + [own[number] for number in sorted(own)]  # held since the snapshot was read

    def _picked(self, study_id: int, snapshot: _Snapshot, wanted: tuple[TrialState, ...]) -> list[FrozenTrial]:
        if not all(state.is_finished() for state in wanted):
            return [
                trial
                for trial in self._with_own(study_id, snapshot.trials)
                if trial.state in wanted and not died_unborn(trial)
            ]
        # Pruners ask for the finished ones at every step; those change with the snapshot only.
        picked = snapshot.picked.get(wanted)
        if picked is None:
            picked = [trial for trial in snapshot.trials if trial.state in wanted and not died_unborn(trial)]
            snapshot.picked[wanted] = picked
        return list(picked)


def _as_stored(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as they come back from the storage: tuples as lists, keys of dicts as text."""
    return {key: json.loads(json.dumps(value)) for key, value in attrs.items()}
