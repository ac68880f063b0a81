"""Who may run a trial and who may end it: each change of hands is one compare-and-set, true for one caller.

All take a storage from `open_storage` or a view of one, and raise `TransientStorageError` when the database does not
answer: repeat the call. None of them raises for a trial that somebody else has moved on; that is what False means.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from vrampool.errors import StudyError
from vrampool.storage.marks import (
    CANCELLED,
    CLAIM,
    LOST,
    MARK,
    OVER_GIB_ATTR,
    PLAN,
    REQUEST,
    Mark,
    mark_of,
)
from vrampool.storage.planned import Plan
from vrampool.storage.pool_storage import PoolStorage
from vrampool.storage.view import StorageView

#: System attributes that belong to what an attempt did, not to how it was sampled: a retry starts without them.
_NOT_COPIED = ("constraints", "completed_rung_")


def claim(storage: BaseStorage, trial_id: int, worker: str, *, at_s: float | None = None) -> bool:
    """Take a WAITING trial for a worker: RUNNING, with the claim and its true start, in one write.

    Args:
        storage: The pool's storage.
        trial_id: The trial.
        worker: The worker's name.
        at_s: Seconds since the epoch, and the claim's identity: pass the same number when the call is repeated after
            a fault, since the first may have been written although its answer got lost.

    Returns:
        True for the one caller that may run the trial. False: it runs, it is finished, or it was delivered twice.
    """
    pool = _pool(storage)
    key = CLAIM + worker
    at = time.time() if at_s is None else at_s
    if pool.move_trial(trial_id, TrialState.WAITING, TrialState.RUNNING, user_attrs={key: at}):
        return True
    if at_s is None:
        return False
    trial = pool.get_trial(trial_id)
    return trial.state == TrialState.RUNNING and trial.user_attrs.get(key) == at_s


def fail_lost(storage: BaseStorage, trial_id: int, reason: str) -> bool:
    """Fail a RUNNING trial whose worker is gone. A trial that no worker of ours claimed is left alone."""
    pool = _pool(storage)
    return pool.move_trial(trial_id, TrialState.RUNNING, TrialState.FAIL, user_attrs={LOST: reason}, claimed_only=True)


def cancel_waiting(storage: BaseStorage, trial_id: int, reason: str) -> bool:
    """Fail a trial that nobody has started. False when a worker claimed it a moment earlier."""
    pool = _pool(storage)
    return pool.move_trial(trial_id, TrialState.WAITING, TrialState.FAIL, user_attrs={CANCELLED: reason})


def fail_running(storage: BaseStorage, trial_id: int, user_attrs: Mapping[str, Any]) -> bool:
    """Fail a RUNNING trial with its facts, without asking the sampler.

    For ends the objective has no part in: `study.tell` would let a `BruteForceSampler` stumble over a trial that
    died before it asked for anything.
    """
    return _pool(storage).move_trial(trial_id, TrialState.RUNNING, TrialState.FAIL, user_attrs=user_attrs)


def prune_infeasible(
    storage: BaseStorage, trial_id: int, over_gib: float, user_attrs: Mapping[str, Any] | None = None
) -> bool:
    """End a RUNNING trial that fits no device: a constraint says by how much, PRUNED without a value.

    `study.tell` would take the last reported value for the trial's value. Told FAIL, samplers come back to it.
    """
    return _pool(storage).move_trial(
        trial_id,
        TrialState.RUNNING,
        TrialState.PRUNED,
        user_attrs=user_attrs,
        system_attrs={OVER_GIB_ATTR: float(over_gib)},
    )


def record_plan(
    storage: BaseStorage, trial_id: int, plan: Plan | None, request: Mapping[str, Any] | None = None
) -> None:
    """Write a trial's plan and request in one write. Raises `UpdateFinishedTrialError` for a finished trial."""
    attrs: dict[str, Any] = {}
    if plan:
        attrs[PLAN] = plan
    if request is not None:
        attrs[REQUEST] = dict(request)
    if attrs:
        _pool(storage).set_trial_attrs(trial_id, attrs)


def record_facts(storage: BaseStorage, trial_id: int, user_attrs: Mapping[str, Any]) -> None:
    """Write an attempt's attributes in one write, before it is told.

    The memory of a trial that fitted is no constraint in the storage: Optuna's `GPSampler` refuses complete trials
    with and without one, and the next trial may be run by Optuna alone. Samplers of the pool are shown it
    (`queue_view.with_memory_constraints`).

    Raises:
        UpdateFinishedTrialError: somebody ended the trial meanwhile.
    """
    _pool(storage).set_trial_attrs(trial_id, user_attrs)


def adopt_waiting(storage: BaseStorage, trial_id: int, mark: Mark, request: Mapping[str, Any] | None = None) -> bool:
    """Mark a trial that the user enqueued himself. False when it no longer waits: somebody popped or ended it."""
    attrs: dict[str, Any] = {MARK: mark.to_json()}
    if request is not None:
        attrs[REQUEST] = dict(request)
    return _pool(storage).move_trial(trial_id, TrialState.WAITING, TrialState.WAITING, user_attrs=attrs)


def create_planned(
    storage: BaseStorage,
    study_id: int,
    mark: Mark,
    *,
    fixed_params: Mapping[str, Any] | None = None,
    plan: Plan | None = None,
    request: Mapping[str, Any] | None = None,
) -> int:
    """Create a WAITING trial without asking the sampler, as `study.enqueue_trial` does, in one write.

    Returns:
        The trial's id.
    """
    attrs: dict[str, Any] = {MARK: mark.to_json()}
    if plan:
        attrs[PLAN] = plan
    if request is not None:
        attrs[REQUEST] = dict(request)
    system = {} if fixed_params is None else {"fixed_params": dict(fixed_params)}
    return _base(storage).create_waiting(study_id, attrs, system)._trial_id


def create_retry(
    storage: BaseStorage, study_id: int, trial: FrozenTrial, request: Mapping[str, Any], reason: str
) -> int:
    """Create the next attempt after a failed one, WAITING, in one write. Made once, whoever asks and how often.

    It keeps what the sampler decided (plan, stored parameters, the sampler's attributes) and the user's attributes;
    it starts without reports, constraints and rungs. Lineage is told twice: in our mark, and in `failed_trial` and
    `retry_history` as Optuna's own retry callback does.

    Args:
        storage: The pool's storage.
        study_id: The study.
        trial: The failed attempt.
        request: {"bytes": int or None for a whole device, "reason": text, "avoid": device id or None}.
        reason: Why it is retried; used when the request does not say.

    Returns:
        The id of the next attempt: the one just made, or the one that was there already.

    Raises:
        StudyError: the trial is not of this pool.
    """
    mark = mark_of(trial)
    if mark is None:
        raise StudyError(f"trial {trial.number} was not made by this pool and is not retried")
    attrs = {key: value for key, value in trial.user_attrs.items() if not key.startswith("vrampool:")}
    attrs[MARK] = mark.next(trial.number).to_json()
    if PLAN in trial.user_attrs:
        attrs[PLAN] = trial.user_attrs[PLAN]
    attrs[REQUEST] = {"reason": reason, **request}
    system = {key: value for key, value in trial.system_attrs.items() if not key.startswith(_NOT_COPIED)}
    system["failed_trial"] = trial.number if mark.root is None else mark.root
    system["retry_history"] = [*trial.system_attrs.get("retry_history", []), trial.number]
    if trial.params:
        system["fixed_params"] = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
    return _base(storage).create_waiting(study_id, attrs, system, retry_of=trial.number)._trial_id


def is_fenced(error: BaseException) -> bool:
    """True when a call failed because somebody else has ended the trial: its outcome is dropped.

    `study.tell` says so with a ValueError when it sees the state, and with Optuna's own error when it loses the race.
    """
    return isinstance(error, UpdateFinishedTrialError) or (
        isinstance(error, ValueError) and str(error).startswith("Cannot tell a ")
    )


def _pool(storage: BaseStorage) -> PoolStorage | StorageView:
    if isinstance(storage, (PoolStorage, StorageView)):
        return storage
    raise StudyError(
        f"a {type(storage).__name__} has no atomic claims: open the study with vrampool.storage.open_storage"
    )


def _base(storage: BaseStorage) -> PoolStorage:
    pool = _pool(storage)
    return pool.base if isinstance(pool, StorageView) else pool
