"""What workers write into the study, and studies that have a long past already."""

from __future__ import annotations

import datetime
import json
import random
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.storages._rdb import models
from optuna.trial import TrialState

from vrampool.messages import AttemptFacts, EndKind, Verdict
from vrampool.storage import ATTEMPT, CLAIM, MARK, PLAN, REQUEST, Mark, PoolStorage, claim, load_plan
from vrampool.units import GIB

#: What the objective would suggest.
SPACE: dict[str, BaseDistribution] = {
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
    "dropout": FloatDistribution(0.0, 0.6),
    "layers": IntDistribution(2, 12),
    "width": IntDistribution(64, 2048, log=True),
    "optimizer": CategoricalDistribution(["adam", "adamw", "sgd"]),
}
_SPACE_JSON = {name: distribution_to_json(distribution) for name, distribution in SPACE.items()}
_FIXED = "fixed_params"
# Put together once: that takes longer than they do.
_ADD_PARAMS = sa.insert(models.TrialParamModel.__table__)
_PLANNED = sa.union_all(
    *(
        sa.select(table.c.key, table.c.value_json).where(
            table.c.trial_id == sa.bindparam("trial_id"), table.c.key == key
        )
        for model, key in ((models.TrialUserAttributeModel, PLAN), (models.TrialSystemAttributeModel, _FIXED))
        for table in (model.__table__,)
    )
)
OBJECTIVE = f"{Path(__file__)}:stand_in"
REQUEST_BYTES = 20 * GIB
OVERHEAD_BYTES = int(0.7 * GIB)


def stand_in(trial: Any) -> float:
    """What the submission names; nobody calls it, as trials only pass their time."""
    raise AssertionError("simulated")


def draw(rng: random.Random) -> dict[str, Any]:
    """Return parameters at random."""
    return {
        "lr": 10 ** rng.uniform(-5, -1),
        "dropout": rng.uniform(0.0, 0.6),
        "layers": rng.randint(2, 12),
        "width": int(2 ** rng.uniform(6, 11)),
        "optimizer": rng.choice(["adam", "adamw", "sgd"]),
    }


def value_of(params: dict[str, Any]) -> float:
    """Return a value with a best place, so that samplers have something to find."""
    return float((params["dropout"] - 0.2) ** 2 + abs(params["layers"] - 6) + (params["optimizer"] != "adamw"))


def peak_of(params: dict[str, Any], rng: random.Random) -> int:
    """Return what a trial needs: from 1.2 to about 30 GiB, most of it by its layers and their width."""
    weights = params["layers"] * params["width"] / (12 * 2048)
    optimizer = {"adam": 1.0, "adamw": 1.0, "sgd": 0.6}[params["optimizer"]]
    return int(OVERHEAD_BYTES + (0.5 + 29 * weights * optimizer) * rng.lognormvariate(0.0, 0.03) * GIB)


class Worksheet:
    """The workers' side of the storage. All of them share one connection: what that costs is not looked at."""

    def __init__(self, storage: PoolStorage, rng: random.Random) -> None:
        self._storage = storage
        self._rng = rng
        self._values: dict[int, float] = {}  #: of trials that run, by id

    def begin(self, trial_id: int, worker: str) -> dict[str, Any] | None:
        """Claim a trial as a worker does, and write the parameters that its objective suggests first of all.

        Returns:
            The parameters; None: somebody else has it.
        """
        if not claim(self._storage, trial_id, worker):
            return None
        with self._storage.database.transaction() as session:
            found = {key: json.loads(text) for key, text in session.execute(_PLANNED, {"trial_id": trial_id})}
            planned, _ = load_plan(found.get(PLAN))
            params = draw(self._rng) | planned | found.get(_FIXED, {})
            session.execute(_ADD_PARAMS, _param_rows(trial_id, params))
        self._values[trial_id] = value_of(params)
        return params

    def tell(self, trial_id: int, worker: str, device_id: str, *, lease_bytes: int, peak_bytes: int) -> None:
        """Write the facts of a trial, and its value, as a worker does. One that needed more than its lease failed."""
        well = peak_bytes <= lease_bytes
        facts = {ATTEMPT: facts_of(worker, device_id, lease_bytes, peak_bytes)}
        value = self._values.pop(trial_id)
        told = self._storage.move_trial(
            trial_id,
            TrialState.RUNNING,
            TrialState.COMPLETE if well else TrialState.FAIL,
            values=[value] if well else None,
            user_attrs=facts,
        )
        assert told, f"trial {trial_id} was ended by somebody else"


def facts_of(
    worker: str, device_id: str, lease_bytes: int = REQUEST_BYTES, peak_bytes: int = int(REQUEST_BYTES * 0.8)
) -> dict[str, Any]:
    """Return the facts of an attempt: it ended well, or out of memory where its lease was less than its need."""
    well = peak_bytes <= lease_bytes
    return AttemptFacts(
        end=EndKind.COMPLETE if well else EndKind.OOM,
        verdict=None if well else Verdict.CULPRIT,
        asked_bytes=None if well else peak_bytes - lease_bytes,
        worker=worker,
        host="simulated",
        device=device_id,
        device_name="NVIDIA H100 80GB HBM3",
        pid=1,
        request_bytes=REQUEST_BYTES,
        request_reason="20 GiB, as the submission says",
        lease_bytes=lease_bytes,
        lease_at_end_bytes=lease_bytes,
        overhead_bytes=OVERHEAD_BYTES,
        peak_bytes=min(peak_bytes, lease_bytes),
        peak_source="child",
        budget_bytes=68 * GIB,
        story="It asked for 20 GiB, as the submission says, got that much, and held at most 16 GiB of it.",
        run_s=60.0,
    ).to_json()


def give_past(
    storage: PoolStorage, study_id: int, submission_id: str, count: int, rng: random.Random, *, differ: bool = False
) -> None:
    """Add trials of the submission that ended well long ago, to a study that has none yet. All at once: it is quick.

    Args:
        storage: The pool's storage.
        study_id: The study.
        submission_id: The submission.
        count: How many.
        rng: Draws their parameters.
        differ: Each held what follows from its parameters; else all of them the same.
    """
    attrs = {
        MARK: Mark(submission=submission_id).to_json(),
        REQUEST: {"bytes": REQUEST_BYTES, "reason": "20 GiB, as the submission says"},
        ATTEMPT: facts_of("earlier", "GPU-earlier"),
        f"{CLAIM}earlier": 0.0,
    }
    written = {key: json.dumps(value) for key, value in attrs.items()}
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    rows: dict[Any, list[dict[str, Any]]] = {
        models.TrialModel: [],
        models.TrialParamModel: [],
        models.TrialValueModel: [],
        models.TrialUserAttributeModel: [],
    }
    for number in range(count):
        trial_id, params = number + 1, draw(rng)
        trial = {"trial_id": trial_id, "number": number, "study_id": study_id, "state": TrialState.COMPLETE}
        rows[models.TrialModel].append(trial | {"datetime_start": now, "datetime_complete": now})
        rows[models.TrialParamModel] += _param_rows(trial_id, params)
        value = {"trial_id": trial_id, "objective": 0, "value": value_of(params), "value_type": "FINITE"}
        rows[models.TrialValueModel].append(value)
        if differ:
            peak_bytes = peak_of(params, rng)
            written[ATTEMPT] = json.dumps(facts_of("earlier", "GPU-earlier", int(1.1 * peak_bytes), peak_bytes))
        rows[models.TrialUserAttributeModel] += [
            {"trial_id": trial_id, "key": key, "value_json": text} for key, text in written.items()
        ]
    if count:
        with storage.database.transaction() as session:
            for model, found in rows.items():
                session.execute(sa.insert(model.__table__), found)


def _param_rows(trial_id: int, params: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "trial_id": trial_id,
            "param_name": name,
            "param_value": SPACE[name].to_internal_repr(value),
            "distribution_json": _SPACE_JSON[name],
        }
        for name, value in params.items()
    ]
