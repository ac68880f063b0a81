"""Trials read and reported to by rows: the same `FrozenTrial`s as Optuna builds, in a fraction of the time.

A study is read again and again while its trials run, and every value they reported is a row. Optuna's storage makes an
object of the mapper for each; at 10 000 reported values that took longer than all else that a worker does.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from vrampool.storage.known_trials import KnownTrials, Row

_trials: sa.Table = models.TrialModel.__table__
_params: sa.Table = models.TrialParamModel.__table__
_values: sa.Table = models.TrialValueModel.__table__
_reports: sa.Table = models.TrialIntermediateValueModel.__table__
_user_attrs: sa.Table = models.TrialUserAttributeModel.__table__
_system_attrs: sa.Table = models.TrialSystemAttributeModel.__table__

#: Ids in one question; SQLite takes 999 at least.
_IDS = 900
_SPECIAL = {"NAN": float("nan"), "INF_POS": float("inf"), "INF_NEG": float("-inf")}

_BASE = sa.select(
    _trials.c.trial_id, _trials.c.number, _trials.c.state, _trials.c.datetime_start, _trials.c.datetime_complete
)


def _question(table: sa.Table, *names: str, order: str | None = None) -> sa.Select[Any]:
    # Built once: putting a statement together costs more than its answer. Enums stay text: finding the member for
    # each of many rows costs more than reading it.
    columns = [
        sa.type_coerce(table.c[name], sa.String) if isinstance(table.c[name].type, sa.Enum) else table.c[name]
        for name in names
    ]
    question = sa.select(table.c.trial_id, *columns).where(table.c.trial_id.in_(sa.bindparam("ids", expanding=True)))
    return question if order is None else question.order_by(table.c[order])


_UNFINISHED = (TrialState.WAITING, TrialState.RUNNING)
#: What tells whether an unfinished trial moved on, as the database holds it: times are not even parsed.
_SHORT = sa.select(
    _trials.c.trial_id,
    sa.type_coerce(_trials.c.state, sa.String),
    sa.type_coerce(_trials.c.datetime_start, sa.types.NullType()),
).where(
    _trials.c.study_id == sa.bindparam("study_id"),
    _trials.c.trial_id >= sa.bindparam("first"),
    sa.or_(_trials.c.state.in_(_UNFINISHED), _trials.c.trial_id > sa.bindparam("last")),
)
_ONE = _BASE.where(_trials.c.trial_id == sa.bindparam("trial_id"))
_PARAMS = _question(_params, "param_name", "param_value", "distribution_json", order="param_id")
_VALUES = _question(_values, "value", "value_type", order="objective")
_REPORTS = _question(_reports, "step", "intermediate_value", "intermediate_value_type")
_USER_ATTRS = _question(_user_attrs, "key", "value_json")
_SYSTEM_ATTRS = _question(_system_attrs, "key", "value_json")


def read_trials(
    session: Session,
    study_id: int,
    *,
    states: Collection[TrialState] | None,
    included_trial_ids: Collection[int],
    trial_id_greater_than: int,
    known: KnownTrials | None = None,
) -> list[FrozenTrial]:
    """Return trials of a study in the order of their ids.

    Where some are known, those that are wanted although they are no newer, and are as they were, are left out: whoever
    names them has them.

    Args:
        session: Within a transaction: all is read from one state of the database.
        study_id: The study.
        states: Only trials in these states; None: in any.
        included_trial_ids: Trials up to `trial_id_greater_than` that are wanted all the same.
        trial_id_greater_than: All trials with larger ids are wanted.
        known: Unfinished trials that need not be read again; None: all are.

    Raises:
        KeyError: there is no such study.
    """
    if known is not None and states is None:
        return _read_changed(session, study_id, included_trial_ids, trial_id_greater_than, known)
    models.StudyModel.find_or_raise_by_id(study_id, session)
    base = _BASE.where(_trials.c.study_id == study_id)
    if states is not None:
        base = base.where(_trials.c.state.in_(list(states)))
    rows: list[Any] = list(session.execute(base.where(_trials.c.trial_id > trial_id_greater_than)))
    older = sorted(trial_id for trial_id in included_trial_ids if trial_id <= trial_id_greater_than)
    for ids in _portions(older):
        rows += session.execute(base.where(_trials.c.trial_id.in_(ids)))
    rows.sort(key=lambda row: int(row.trial_id))
    return _with_details(session, rows)


def _read_changed(
    session: Session, study_id: int, has: Collection[int], trial_id_greater_than: int, known: KnownTrials
) -> list[FrozenTrial]:
    """Read the trials of a study that are new or have changed.

    Args:
        session: As for `read_trials`.
        study_id: The study.
        has: Unfinished ones that were read before.
        trial_id_greater_than: All with larger ids are wanted too.
        known: What they were like.
    """
    last = trial_id_greater_than
    found = session.execute(_SHORT, {"study_id": study_id, "first": min(has, default=last), "last": last}).all()
    if not found:  # else there is such a study
        models.StudyModel.find_or_raise_by_id(study_id, session)
    rows: list[Row] = [(trial_id, (state, began)) for trial_id, state, began in found]
    unchanged = known.of(rows)
    seen = dict(rows)
    # Of those that are not among the unfinished any more nothing was said: they have ended.
    wanted = [trial_id for trial_id in seen if trial_id not in unchanged or trial_id not in has]
    wanted += [trial_id for trial_id in has if trial_id not in seen]
    base = _BASE.where(_trials.c.study_id == study_id)
    whole: list[Any] = []
    if not has:
        whole += session.execute(base.where(_trials.c.trial_id > last)).all()
    for ids in _portions(sorted(wanted) if has else ()):
        whole += session.execute(base.where(_trials.c.trial_id.in_(ids))).all()
    whole.sort(key=lambda row: int(row.trial_id))
    read = _with_details(session, whole)
    known.note(seen, read)
    return read


def read_trial(session: Session, trial_id: int) -> FrozenTrial:
    """Return one trial; raises KeyError when there is none with this id."""
    found = _with_details(session, list(session.execute(_ONE, {"trial_id": trial_id})))
    if not found:
        raise KeyError(f"there is no trial with id {trial_id}")
    return found[0]


def waiting_trial(
    trial_id: int, number: int, user_attrs: Mapping[str, Any], system_attrs: Mapping[str, Any]
) -> FrozenTrial:
    """Return a trial that was made just now as it would be read."""
    return FrozenTrial(
        number=number,
        trial_id=trial_id,
        state=TrialState.WAITING,
        value=None,
        datetime_start=None,
        datetime_complete=None,
        params={},
        distributions={},
        user_attrs=json.loads(json.dumps(dict(user_attrs))),
        system_attrs=json.loads(json.dumps(dict(system_attrs))),
        intermediate_values={},
    )


def write_report(session: Session, trial_id: int, step: int, value: float) -> None:
    """Write an intermediate value over the one that is there for this step, if any."""
    stored, kind = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr(value)
    row = {"trial_id": trial_id, "step": step, "intermediate_value": stored, "intermediate_value_type": kind}
    dialect = session.get_bind().dialect.name
    columns = ("intermediate_value", "intermediate_value_type")
    session.execute(upsert(dialect, _reports, ("trial_id", "step"), columns), [row])


@functools.cache
def upsert(dialect: str, table: sa.Table, keys: tuple[str, ...], values: tuple[str, ...]) -> Any:
    """Return an INSERT that overwrites `values` where a row with the same `keys` is there."""
    insert: Any = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    return insert.on_conflict_do_update(index_elements=keys, set_={name: insert.excluded[name] for name in values})


def _with_details(session: Session, rows: Sequence[Any]) -> list[FrozenTrial]:
    ids = [row.trial_id for row in rows]
    params: dict[int, dict[str, Any]] = defaultdict(dict)
    distributions: dict[int, dict[str, BaseDistribution]] = defaultdict(dict)
    for trial_id, name, value, text in _details(session, ids, _PARAMS):
        distribution = _distribution(text)
        distributions[trial_id][name] = distribution
        params[trial_id][name] = distribution.to_external_repr(value)
    values: dict[int, list[float]] = defaultdict(list)
    for trial_id, value, kind in _details(session, ids, _VALUES):
        values[trial_id].append(_SPECIAL.get(kind, value))
    reports: dict[int, dict[int, float]] = defaultdict(dict)
    for trial_id, step, value, kind in _details(session, ids, _REPORTS):
        reports[trial_id][step] = value if kind == "FINITE" else _SPECIAL[kind]
    user_attrs, system_attrs = _attrs(session, ids, _USER_ATTRS), _attrs(session, ids, _SYSTEM_ATTRS)
    return [
        FrozenTrial(
            number=row.number,
            state=row.state,
            value=None,
            values=values.get(row.trial_id),
            datetime_start=_local(row.datetime_start),
            datetime_complete=_local(row.datetime_complete),
            params=params[row.trial_id],
            distributions=distributions[row.trial_id],
            user_attrs=user_attrs[row.trial_id],
            system_attrs=system_attrs[row.trial_id],
            intermediate_values=reports[row.trial_id],
            trial_id=row.trial_id,
        )
        for row in rows
    ]


def _attrs(session: Session, ids: Sequence[int], question: sa.Select[Any]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    for trial_id, key, text in _details(session, ids, question):
        found[trial_id][key] = json.loads(text)
    return found


def _details(session: Session, ids: Sequence[int], question: sa.Select[Any]) -> Iterator[Any]:
    """Yield (trial id, columns...) of all rows that belong to trials, as the database holds them."""
    for portion in _portions(ids):
        yield from session.execute(question, {"ids": portion}).all()  # at once: one by one takes twice as long


def _portions(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[start : start + _IDS] for start in range(0, len(ids), _IDS))


@functools.lru_cache(maxsize=4096)
def _distribution(text: str) -> BaseDistribution:
    return json_to_distribution(text)


def _local(utc: datetime.datetime | None) -> datetime.datetime | None:
    # As Optuna gives it: naive local time, from the naive UTC it stores.
    return None if utc is None else utc.replace(tzinfo=datetime.UTC).astimezone().replace(tzinfo=None)
