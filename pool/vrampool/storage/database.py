"""Optuna's `RDBStorage` made right for many processes, and the writes of ours that must happen together.

Three things differ. Transactions begin so that no two processes win one trial (`locking`). Faults that pass are told
apart (`faults`). And some writes that Optuna makes in several transactions are made in one: a claim, an end with its
facts, a birth with its mark.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import sqlalchemy as sa
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.orm import Session

from vrampool.errors import StaleLeaderError
from vrampool.storage import schema, trial_rows
from vrampool.storage.address import Address
from vrampool.storage.faults import transient_faults
from vrampool.storage.known_trials import KnownTrials
from vrampool.storage.locking import arm, reading
from vrampool.storage.marks import CLAIM, MARK
from vrampool.storage.trial_rows import upsert

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Method = Callable[Concatenate[Any, _P], _R]

_trials: sa.Table = models.TrialModel.__table__
_studies: sa.Table = models.StudyModel.__table__
_values: sa.Table = models.TrialValueModel.__table__
_user_attrs: sa.Table = models.TrialUserAttributeModel.__table__
_system_attrs: sa.Table = models.TrialSystemAttributeModel.__table__

#: While Optuna checks and creates its tables, transactions begin without the write lock: it writes on one connection
#: while another of its own still reads, and would wait for itself. `schema.creation_lock` makes creation safe instead.
_optunas_own_order: Callable[[], AbstractContextManager[None]] = reading


def _reads(method: _Method[_P, _R]) -> _Method[_P, _R]:
    @functools.wraps(method)
    def call(self: Any, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with transient_faults(self.shown), reading():
            return method(self, *args, **kwargs)

    return cast("_Method[_P, _R]", call)


def _writes(method: _Method[_P, _R]) -> _Method[_P, _R]:
    @functools.wraps(method)
    def call(self: Any, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with transient_faults(self.shown):
            return method(self, *args, **kwargs)

    return cast("_Method[_P, _R]", call)


class PoolDatabase(RDBStorage):
    """Optuna's storage on SQLite or PostgreSQL, for use by many processes.

    Args:
        address: Where it lives.
        busy_timeout_s: How long a call waits for another writer.
        create: Create Optuna's tables where they are missing.
        check: Compare their version with this Optuna's.
    """

    known_trials: KnownTrials | None = None  #: where it is None, unfinished trials are read whole every time

    def __init__(self, address: Address, *, busy_timeout_s: float, create: bool, check: bool) -> None:
        self.shown = address.shown
        self.busy_timeout_s = busy_timeout_s
        self._leadership: tuple[str, str] | None = None
        # Optuna fills {SCHEMA_VERSION} into URLs by str.format: braces of a path or a password must survive that.
        with _optunas_own_order():
            super().__init__(
                address.url.replace("{", "{{").replace("}", "}}"),
                engine_kwargs=address.engine_kwargs(busy_timeout_s=busy_timeout_s),
                skip_table_creation=not create,
                skip_compatibility_check=not check,
            )

    def __setstate__(self, state: dict[Any, Any]) -> None:
        with _optunas_own_order():
            super().__setstate__(state)

    # Optuna makes its engine in two places, and uses it at once: when it is built and when it is unpickled.
    @property
    def engine(self) -> sa.Engine:
        return self.__dict__["engine"]  # type: ignore[no-any-return]

    @engine.setter
    def engine(self, engine: sa.Engine) -> None:
        self.__dict__["engine"] = arm(engine, busy_timeout_s=self.busy_timeout_s)

    # ---- Optuna's own methods: which read, which write ----------------------------------------------

    get_study_id_from_name = _reads(RDBStorage.get_study_id_from_name)
    get_study_name_from_id = _reads(RDBStorage.get_study_name_from_id)
    get_study_directions = _reads(RDBStorage.get_study_directions)
    get_study_user_attrs = _reads(RDBStorage.get_study_user_attrs)
    get_study_system_attrs = _reads(RDBStorage.get_study_system_attrs)
    get_all_studies = _reads(RDBStorage.get_all_studies)
    get_trial_param = _reads(RDBStorage.get_trial_param)
    get_trial_user_attrs = _reads(RDBStorage.get_trial_user_attrs)
    get_trial_system_attrs = _reads(RDBStorage.get_trial_system_attrs)
    get_trial_id_from_study_id_trial_number = _reads(RDBStorage.get_trial_id_from_study_id_trial_number)
    get_all_trials = _reads(RDBStorage.get_all_trials)
    get_best_trial = _reads(RDBStorage.get_best_trial)
    _get_best_trial_id = _reads(RDBStorage._get_best_trial_id)
    set_study_user_attr = _writes(RDBStorage.set_study_user_attr)
    set_study_system_attr = _writes(RDBStorage.set_study_system_attr)
    set_trial_state_values = _writes(RDBStorage.set_trial_state_values)
    set_trial_user_attr = _writes(RDBStorage.set_trial_user_attr)
    set_trial_system_attr = _writes(RDBStorage.set_trial_system_attr)
    _set_trial_param = _writes(RDBStorage._set_trial_param)
    _create_new_trial = _writes(RDBStorage._create_new_trial)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """One write transaction of ours. Commits at the end, rolls back on an exception.

        Raises:
            TransientStorageError: repeat the whole of it.
        """
        with transient_faults(self.shown), _create_scoped_session(self.scoped_session) as session:
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """One read transaction. Raises as `transaction` does."""
        with reading(), self.transaction() as session:
            yield session

    # ---- Optuna's own, by rows: they are called at every report -------------------------------------

    def get_trial(self, trial_id: int) -> FrozenTrial:
        with self.snapshot() as session:
            return trial_rows.read_trial(session, trial_id)

    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        with self.snapshot() as session:
            return trial_rows.read_trials(
                session,
                study_id,
                states=None if states is None else [state for state in TrialState if state in states],
                included_trial_ids=included_trial_ids,
                trial_id_greater_than=trial_id_greater_than,
                known=self.known_trials,
            )

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        with self.transaction() as session:
            _check_unfinished(session, trial_id)
            trial_rows.write_report(session, trial_id, step, intermediate_value)

    # ---- studies: our rows begin and end with them ---------------------------------------------------

    @_writes
    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        if study_name is not None:
            # Rows left by a study of this name that was deleted without us would refuse the new one its points.
            stale = sa.and_(
                schema.points.c.study_name == study_name,
                ~sa.exists().where(_studies.c.study_name == study_name),
            )
            with self.transaction() as session:
                session.execute(sa.delete(schema.points).where(stale))
        return super().create_new_study(directions, study_name)

    @_writes
    def delete_study(self, study_id: int) -> None:
        name = self.get_study_name_from_id(study_id)
        super().delete_study(study_id)
        with self.transaction() as session:
            for table in (schema.points, schema.submissions):
                session.execute(sa.delete(table).where(table.c.study_name == name))

    # ---- trials: what must happen together ------------------------------------------------------------

    def create_waiting(
        self,
        study_id: int,
        user_attrs: Mapping[str, Any],
        system_attrs: Mapping[str, Any],
        *,
        retry_of: int | None = None,
    ) -> FrozenTrial:
        """Create a WAITING trial with its attributes in one transaction.

        Args:
            study_id: The study.
            user_attrs: JSON values by name.
            system_attrs: JSON values by name.
            retry_of: Number of a trial that may be retried once: when its retry is there already, that is returned.

        Raises:
            KeyError: there is no such study.
            StaleLeaderError: this process led the pool (`lead`), and another one does now.
        """
        with self.transaction() as session:
            # Whoever creates trials of a study holds its row: numbers are unique and in the order of ids.
            lock = sa.select(_studies.c.study_id).where(_studies.c.study_id == study_id).with_for_update()
            if session.scalar(lock) is None:
                raise KeyError(f"there is no study with id {study_id}")
            self._check_leadership(session)
            if retry_of is not None and (found := _retry_of(session, study_id, retry_of)) is not None:
                trial_id = found
            else:
                count = sa.select(sa.func.count()).select_from(_trials).where(_trials.c.study_id == study_id)
                number = session.scalar(count) or 0
                row = {"study_id": study_id, "number": number, "state": TrialState.WAITING}
                trial_id = session.execute(sa.insert(_trials).values(row)).inserted_primary_key[0]  # type: ignore[attr-defined]
                self._put_attrs(session, trial_id, user_attrs, system_attrs)
                return trial_rows.waiting_trial(trial_id, number, user_attrs, system_attrs)
        return self.get_trial(trial_id)

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
        """Compare-and-set a trial's state, and write values and attributes in the same transaction.

        Args:
            trial_id: The trial.
            before: The state it must be in.
            after: The state it gets; start and end are stamped as Optuna stamps them.
            values: Its values; for a finished state only.
            user_attrs: JSON values by name.
            system_attrs: JSON values by name.
            claimed_only: Refuse a trial that no worker of ours has claimed.

        Returns:
            True for the one caller who moved it; nothing is written for the others.

        Raises:
            StaleLeaderError: as `create_waiting`.
        """
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)  # Optuna keeps naive UTC
        changes: dict[str, Any] = {"state": after}
        if after == TrialState.RUNNING:
            changes["datetime_start"] = now
        if after.is_finished():
            changes["datetime_complete"] = now
        move = sa.update(_trials).where(_trials.c.trial_id == trial_id, _trials.c.state == before).values(changes)
        if claimed_only:
            move = move.where(
                sa.exists().where(
                    _user_attrs.c.trial_id == trial_id,
                    _user_attrs.c.key.startswith(CLAIM),
                    _user_attrs.c.value_json != "null",
                )
            )
        with self.transaction() as session:
            self._check_leadership(session)
            if session.execute(move).rowcount != 1:  # type: ignore[attr-defined]
                return False
            self._put_attrs(session, trial_id, user_attrs or {}, system_attrs or {})
            if values is not None:
                session.execute(sa.insert(_values), [_value_row(trial_id, i, value) for i, value in enumerate(values)])
        return True

    def set_trial_attrs(
        self, trial_id: int, user_attrs: Mapping[str, Any], system_attrs: Mapping[str, Any] | None = None
    ) -> None:
        """Write several attributes in one transaction.

        Raises:
            KeyError: there is no such trial.
            UpdateFinishedTrialError: it is finished.
        """
        with self.transaction() as session:
            _check_unfinished(session, trial_id)
            self._put_attrs(session, trial_id, user_attrs, system_attrs or {})

    def trial_states(self, trial_ids: Iterable[int]) -> dict[int, TrialState]:
        """Return the states of trials by their ids; one that is not there is left out."""
        query = sa.select(_trials.c.trial_id, _trials.c.state).where(_trials.c.trial_id.in_(list(trial_ids)))
        with self.snapshot() as session:
            return {row.trial_id: row.state for row in session.execute(query)}

    def open_trials_of(self, submission_id: str) -> list[int]:
        """Return the ids of a submission's trials that wait or run, in whatever study."""
        query = (
            sa.select(_trials.c.trial_id, _user_attrs.c.value_json)
            .join(_user_attrs, _user_attrs.c.trial_id == _trials.c.trial_id)
            .where(
                _trials.c.state.in_([TrialState.WAITING, TrialState.RUNNING]),
                _user_attrs.c.key == MARK,
            )
            .order_by(_trials.c.trial_id)
        )
        with self.snapshot() as session:
            marks = [(row.trial_id, json.loads(row.value_json)) for row in session.execute(query)]
        return [
            trial_id for trial_id, mark in marks if isinstance(mark, dict) and mark.get("submission") == submission_id
        ]

    def lead(self, pool: str, token: str) -> None:
        """Create and end trials as the coordinator of a pool from now on: no other one that led before can any more.

        Args:
            pool: The pool's name.
            token: Names this leadership among all of the pool's.
        """
        key = f"leader:{hashlib.sha256(pool.encode()).hexdigest()[:16]}"
        with self.transaction() as session:
            row = {"key": key, "value": token}
            session.execute(upsert(self.engine.dialect.name, schema.meta, ("key",), ("value",)), [row])
        self._leadership = key, token

    def _check_leadership(self, session: Session) -> None:
        """Refuse to create or end a trial when another coordinator leads: it goes by what it has read."""
        if self._leadership is not None:
            key, token = self._leadership
            # Whoever takes the lead waits for this row, and so for what is being written here.
            row = sa.select(schema.meta.c.value).where(schema.meta.c.key == key).with_for_update(read=True)
            if session.scalar(row) != token:
                raise StaleLeaderError("another coordinator leads by now")

    def _put_attrs(
        self, session: Session, trial_id: int, user_attrs: Mapping[str, Any], system_attrs: Mapping[str, Any]
    ) -> None:
        for table, attrs in ((_user_attrs, user_attrs), (_system_attrs, system_attrs)):
            if attrs:
                rows = [
                    {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)} for key, value in attrs.items()
                ]
                session.execute(upsert(self.engine.dialect.name, table, ("trial_id", "key"), ("value_json",)), rows)


def _check_unfinished(session: Session, trial_id: int) -> None:
    """Raise as Optuna does for a trial that nobody may write to; within the transaction it stays as it is."""
    state = session.scalar(sa.select(_trials.c.state).where(_trials.c.trial_id == trial_id).with_for_update())
    if state is None:
        raise KeyError(f"there is no trial with id {trial_id}")
    if state.is_finished():
        raise UpdateFinishedTrialError(f"the trial with id {trial_id} has already finished")


def _value_row(trial_id: int, objective: int, value: float) -> dict[str, Any]:
    stored, value_type = models.TrialValueModel.value_to_stored_repr(value)
    return {"trial_id": trial_id, "objective": objective, "value": stored, "value_type": value_type}


def _retry_of(session: Session, study_id: int, number: int) -> int | None:
    """Return the id of the trial that retries trial `number` of a study, or None."""
    marks = (
        sa.select(_trials.c.trial_id, _user_attrs.c.value_json)
        .join(_user_attrs, _user_attrs.c.trial_id == _trials.c.trial_id)
        .where(
            _trials.c.study_id == study_id,
            _trials.c.number > number,
            _user_attrs.c.key == MARK,
            _user_attrs.c.value_json.like(f'%"retry_of": {number}%'),
        )
    )
    for trial_id, text in session.execute(marks):
        if json.loads(text).get("retry_of") == number:
            return int(trial_id)
    return None
