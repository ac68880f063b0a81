"""Studies as a pool leaves them, without running one: attempts recorded on an H200 (`tests/data/traces`) or made up."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

TRACES = Path(__file__).parents[1] / "data" / "traces"
START = datetime(2026, 11, 30, 12, 0, 0)
GIB = 1024**3
_STATES = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "infeasible": TrialState.PRUNED}


def trace(family: str, count: int | None = None) -> list[dict[str, Any]]:
    """Return recorded attempts of a family: "cnn", "mlp", "resnet" or "transformer"."""
    lines = (TRACES / f"{family}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[:count]]


def attempt(
    start_s: float = 0.0,
    run_s: float = 10.0,
    *,
    end: str = "complete",
    params: Mapping[str, Any] | None = None,
    request_bytes: int | None = 3 * GIB,
    predicted_bytes: int | None = None,
    reason: str = "3.0 GiB declared by the submission",
    user_attrs: Mapping[str, Any] | None = None,
    **facts: Any,
) -> FrozenTrial:
    """Make one attempt with its facts; `facts` are fields of `AttemptFacts`."""
    told: dict[str, Any] = {
        "end": end,
        "worker": "w-1",
        "host": "host",
        "device": "GPU-1",
        "device_name": "NVIDIA H200",
        "request_bytes": request_bytes,
        "lease_bytes": request_bytes or 20 * GIB,
        "lease_at_end_bytes": request_bytes or 20 * GIB,
        "peak_bytes": 2 * GIB,
        "budget_bytes": 20 * GIB,
        "spawn_s": 0.0,
        "handover_s": 0.02,
        "run_s": run_s,
        "spare": True,
    } | facts
    state = _STATES.get(end, TrialState.FAIL)
    params = dict(params or {})
    made = create_trial(
        state=state,
        values=[0.5] if state == TrialState.COMPLETE else None,
        params=params,
        distributions={name: distribution_of(name, [value]) for name, value in params.items()},
        user_attrs={
            "vrampool:mark": {"submission": "s-1"},
            "vrampool:request": {"bytes": request_bytes, "reason": reason, "predicted": predicted_bytes},
            "vrampool:attempt": told,
            **(user_attrs or {}),
        },
    )
    made.datetime_start = START + timedelta(seconds=start_s)
    made.datetime_complete = made.datetime_start + timedelta(seconds=run_s)
    return made


def distribution_of(name: str, values: list[Any]) -> BaseDistribution:
    """Return a distribution that holds the values: the same for every trial of a recorded family."""
    if any(isinstance(value, (bool, str)) for value in values):
        choices = {"amp": (False, True), "model": ("resnet18", "resnet34", "resnet50")}
        return CategoricalDistribution(choices.get(name, sorted(set(values))))
    if any(isinstance(value, float) for value in values):
        return FloatDistribution(1e-6, 1e3, log=True)
    return IntDistribution(1, 1_000_000, log=True)


def study_of(trials: Iterable[FrozenTrial], name: str = "digits") -> optuna.Study:
    """Return a study in memory that has these trials."""
    study = optuna.create_study(study_name=name, direction="maximize")
    study.add_trials(trials)
    return study


def recorded_study(family: str, count: int | None = None, *, at_once: int = 4) -> optuna.Study:
    """Return a study of recorded attempts, begun one after the other, so many at once: the times are ours."""
    free = [(0.0, slot) for slot in range(at_once)]
    trials = []
    for row in trace(family, count):
        start_s, slot = heapq.heappop(free)
        facts = {name: row[name] for name in row if name not in ("number", "params", "end", "run_s", "request_bytes")}
        facts.setdefault("spawn_s", 0.0)
        facts.setdefault("handover_s", 0.02)
        facts |= {"lease_at_end_bytes": facts["lease_bytes"], "budget_bytes": 40 * GIB, "spare": facts["spawn_s"] == 0}
        taken_s = facts["spawn_s"] + facts["handover_s"]
        made = attempt(
            start_s + taken_s, row["run_s"], end=row["end"], params=row["params"],
            request_bytes=row["request_bytes"], **facts,
        )  # fmt: skip
        trials.append(made)
        heapq.heappush(free, (start_s + taken_s + row["run_s"] + 0.15, slot))
    return study_of(trials, family)
