"""The same objectives through `study.optimize` and through `pool.optimize`: what they leave behind is the same.

One trial at a time on both sides, so that everything can be compared, trial by trial. What runs in parallel is in
`test_parallel`. What differs, and why, is in docs/parity.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import optuna
import pytest
from optuna.samplers import BruteForceSampler, GridSampler, RandomSampler
from parity import objectives
from support.pools import LivePool

Study = optuna.Study


@dataclass
class Row:
    """One objective, and how it is run on both sides."""

    name: str
    objective: Callable[[Any], Any]
    n_trials: int
    options: dict[str, Any] = field(default_factory=dict)  #: of optimize
    study: Callable[[], dict[str, Any]] = dict  #: arguments of create_study, made anew for each side
    prepare: Callable[[Study], Any] = lambda study: None
    seen: Callable[[Study], Any] | None = None  #: what is compared instead of everything
    in_pool: bool = False  #: also with a study that lives in the pool's own storage


def enqueue_two(study: Study) -> None:
    study.enqueue_trial({"x": 1.5, "n": 3}, user_attrs={"mine": True})
    study.enqueue_trial({"x": 2.5})


def enqueue_outside(study: Study) -> None:
    study.enqueue_trial({"x": 50.0, "n": 1})


def run_three(study: Study) -> None:
    study.optimize(objectives.number, n_trials=3)


def name_metric(study: Study) -> None:
    study.set_metric_names(["loss"])
    study.set_user_attr("team", {"a": 1})


def by_params(study: Study) -> Any:
    return sorted((trial.state.name, trial.values, sorted(trial.params.items())) for trial in study.trials)


def by_names(study: Study) -> Any:
    return [(trial.number, trial.state.name, sorted(trial.params)) for trial in study.trials]


def enqueued_params(study: Study) -> Any:
    found = [
        (trial.number, trial.state.name, sorted(trial.params), trial.user_attrs.get("mine")) for trial in study.trials
    ]
    fixed = [trial.params for trial in study.trials[:1]]
    return found, fixed, study.trials[1].params["x"]


ROWS = [
    Row("every trial counts once", objectives.number, 4, in_pool=True),
    Row("nothing is run for n_trials=0", objectives.number, 0),
    Row("a study goes on where it was", objectives.number, 2, prepare=run_three),
    Row(
        "enqueued trials come first and count",
        objectives.enqueued,
        3,
        prepare=enqueue_two,
        seen=enqueued_params,
        in_pool=True,
    ),
    Row("an enqueued value outside its range is used", objectives.enqueued, 1, prepare=enqueue_outside),
    Row("pruned trials keep their last report", objectives.prune, 4, in_pool=True),
    Row(
        "several objectives",
        objectives.two_values,
        4,
        study=lambda: {"directions": ["minimize", "maximize"]},
        in_pool=True,
    ),
    Row("attributes and constraints", objectives.attributes, 3, in_pool=True),
    Row("a caught exception fails the trial", objectives.sometimes, 3, {"catch": ValueError}),
    Row("caught by a base class", objectives.sometimes, 3, {"catch": (KeyError, Exception)}),
    Row("an exception ends the study", objectives.sometimes, 4, in_pool=True),
    Row("another exception than those caught ends the study", objectives.sometimes, 4, {"catch": (KeyError,)}),
    Row("an exception of the user's own", objectives.bad, 4),
    Row("a user's own exception is caught", objectives.bad, 3, {"catch": [objectives.Bad]}),
    Row("what is no number fails the trial and no more", objectives.odd_values, len(objectives.ODD)),
    Row("the objective stops the study", objectives.stop_at_2, 20, in_pool=True),
    Row("a conditional space", objectives.conditional, 6, seen=by_names),
    Row("a range that moves", objectives.growing, 4, seen=by_names),
    Row("choices that change fail the trial", objectives.changed_choices, 3, {"catch": ValueError}, seen=by_names),
    Row(
        "a grid ends the study",
        objectives.grid,
        20,
        study=lambda: {"sampler": GridSampler({"x": [1, 2, 3], "y": [1, 2]}, seed=1)},
        seen=by_params,
        in_pool=True,
    ),
    Row(
        "brute force ends the study",
        objectives.tree,
        20,
        study=lambda: {"sampler": BruteForceSampler(seed=1)},
        seen=by_params,
        in_pool=True,
    ),
    Row(
        "a pruner prunes the same trials at the same steps",
        objectives.reports,
        5,
        study=lambda: {"pruner": optuna.pruners.MedianPruner(n_startup_trials=1)},
    ),
    Row("no pruner, nothing pruned", objectives.reports, 4, study=lambda: {"pruner": optuna.pruners.NopPruner()}),
    Row(
        "the study as the objective sees it",
        objectives.read_study,
        2,
        study=lambda: {"direction": "maximize", "sampler": RandomSampler(), "pruner": optuna.pruners.NopPruner()},
        prepare=name_metric,
        in_pool=True,
    ),
]


def not_ours(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if not key.startswith("vrampool:")}


def everything(study: Study) -> Any:
    return [
        (
            trial.number,
            trial.state.name,
            repr(trial.values),
            trial.params if trial.system_attrs.get("fixed_params") else sorted(trial.params),
            repr(trial.intermediate_values),
            not_ours(trial.user_attrs),
            trial.constraints,
        )
        for trial in study.trials
    ]


@dataclass
class Seen:
    """What one side did."""

    left: Any
    called: list[tuple[int, str, list[float] | None]]
    raised: tuple[type, str] | None
    best: Any


def run(row: Row, study: Study, optimize: Callable[..., None]) -> Seen:
    called: list[tuple[int, str, list[float] | None]] = []
    row.prepare(study)
    raised = None
    try:
        optimize(
            row.objective,
            n_trials=row.n_trials,
            callbacks=[lambda _, trial: called.append((trial.number, trial.state.name, trial.values))],
            **row.options,
        )
    except Exception as error:
        raised = error
    try:
        best: Any = [trial.number for trial in study.best_trials] if len(study.directions) > 1 else study.best_value
    except ValueError as error:
        best = str(error)
    if row.seen is not None:
        called, best = [(0, state, None) for _, state, _ in called], None
    return Seen((row.seen or everything)(study), called, raised, best)  # type: ignore[arg-type]


PLACES = [(row, where) for row in ROWS for where in ("memory", "pool") if where == "memory" or row.in_pool]


@pytest.mark.parametrize(("row", "where"), PLACES, ids=[f"{row.name} [{where}]" for row, where in PLACES])
def test_a_pool_leaves_what_optuna_leaves(pool: LivePool, row: Row, where: str) -> None:
    alone = optuna.create_study(**row.study())
    expected = run(row, alone, alone.optimize)
    storage = pool.pool.storage if where == "pool" else None
    study = optuna.create_study(**row.study(), storage=storage)
    found = run(row, study, lambda *args, **kw: pool.pool.optimize(study, *args, n_jobs=1, vram="100MiB", **kw))
    assert found.left == expected.left
    assert found.called == expected.called, "callbacks: once for each trial, with its state and values"
    assert found.best == expected.best
    if expected.raised is None:
        assert found.raised is None
    else:
        assert isinstance(found.raised, type(expected.raised)), "except around optimize catches what it caught"
        assert str(expected.raised) in str(found.raised)
        assert f"in {row.objective.__name__}" in str(found.raised), "with the traceback of the trial's process"
