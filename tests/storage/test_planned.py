"""The plan is a proposal: used where the objective asks for it, and never where it does not."""

from __future__ import annotations

from collections.abc import Iterator

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import Trial, TrialState
from support.two_sides import TwoSides, two_sides

from vrampool.storage import PlannedTrial, claim, create_planned, create_retry, dump_plan, fail_lost, load_plan
from vrampool.storage.marks import Mark

SPACE: dict[str, BaseDistribution] = {
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
    "momentum": FloatDistribution(0, 1, step=0.125),
    "batch": IntDistribution(8, 512, log=True),
    "layers": IntDistribution(1, 9, step=2),
    "act": CategoricalDistribution([None, "relu", 3, 2.5, True]),
}


@pytest.fixture
def sides(ready_url: str) -> Iterator[TwoSides]:
    opened = two_sides(ready_url, lambda seed: RandomSampler(seed=seed))
    yield opened
    opened.close()


def ask_for_all(trial: Trial) -> dict[str, object]:
    return {
        "lr": trial.suggest_float("lr", 1e-5, 1e-1, log=True),
        "momentum": trial.suggest_float("momentum", 0, 1, step=0.125),
        "batch": trial.suggest_int("batch", 8, 512, log=True),
        "layers": trial.suggest_int("layers", 1, 9, step=2),
        "act": trial.suggest_categorical("act", [None, "relu", 3, 2.5, True]),
    }


def test_planned_values_of_every_kind_come_back_as_they_were_sampled(sides: TwoSides) -> None:
    for _ in range(10):
        asked = sides.ask(SPACE)
        trial = sides.workers[0].open(asked._trial_id)
        assert ask_for_all(trial) == asked.params
        assert [type(value) for value in trial.params.values()] == [type(value) for value in asked.params.values()]


def test_a_planned_value_outside_the_asked_range_is_not_used(sides: TwoSides) -> None:
    for _ in range(10):
        trial = sides.workers[0].open(sides.ask({"x": FloatDistribution(-5, 5)})._trial_id)
        assert 10 <= trial.suggest_float("x", 10, 20) <= 20


def test_a_planned_value_inside_a_range_that_grew_is_used(sides: TwoSides) -> None:
    asked = sides.ask({"x": FloatDistribution(0, 1)})
    trial = sides.workers[0].open(asked._trial_id)
    assert trial.suggest_float("x", -100, 100) == asked.params["x"]


def test_parameters_of_the_other_branch_are_never_stored(sides: TwoSides) -> None:
    space = IntersectionSearchSpace(include_pruned=True)

    def objective(trial: Trial) -> float:
        if trial.suggest_categorical("c", ["a", "b"]) == "a":
            return trial.suggest_float("u", 0, 1)
        if trial.suggest_float("v", 0, 1) > 0.8:
            raise optuna.TrialPruned
        return 1.0

    sides.drive(objective, 20, depth=2, space=lambda: {**space.calculate(sides.study), "u": FloatDistribution(0, 1)})

    for trial in sides.trials:
        assert set(trial.params) == {"c", "u" if trial.params["c"] == "a" else "v"}


def test_without_a_plan_the_worker_samples(sides: TwoSides) -> None:
    trial = sides.workers[0].open(sides.ask()._trial_id)
    assert 0 <= trial.suggest_float("x", 0, 1) <= 1


def test_a_starting_point_wins_over_the_plan_and_the_rest_is_sampled(sides: TwoSides) -> None:
    trial_id = create_planned(sides.storage, sides.study_id, Mark("s1"), fixed_params={"x": 0.25})
    trial = sides.workers[0].open(trial_id)
    assert trial.suggest_float("x", 0, 1) == 0.25
    assert 0 <= trial.suggest_float("y", 0, 1) <= 1


def test_a_retry_runs_what_the_first_attempt_ran(sides: TwoSides) -> None:
    asked = sides.ask({"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)})
    first = sides.workers[0].open(asked._trial_id)
    x, z = first.suggest_float("x", 0, 1), first.suggest_float("z", 0, 1)  # dies before it asks for y
    assert fail_lost(sides.storage, asked._trial_id, "gone")
    retry = create_retry(sides.storage, sides.study_id, sides.trials[0], {"bytes": 1}, "lost")

    second = sides.workers[0].open(retry)

    assert second.suggest_float("x", 0, 1) == x
    assert second.suggest_float("z", 0, 1) == z
    assert second.suggest_float("y", 0, 1) == asked.params["y"]


def test_a_trial_opened_by_its_id_may_set_parameters_at_once(sides: TwoSides) -> None:
    """Optuna's cache raises KeyError for a trial that was not read with all the others before."""
    asked = sides.ask({"x": FloatDistribution(0, 1)})
    study = optuna.Study(study_name="s", storage=sides.workers[0].storage, sampler=RandomSampler())
    assert claim(study._storage, asked._trial_id, "w1")
    assert PlannedTrial(study, asked._trial_id).suggest_float("x", 0, 1) == asked.params["x"]


def test_a_plan_survives_json(sides: TwoSides) -> None:
    asked = sides.ask(SPACE)
    values, distributions = load_plan(dump_plan(asked))
    assert values == asked.params and distributions == asked.distributions
    assert load_plan(None) == ({}, {})


def test_tell_reports_and_pruning_go_through_a_planned_trial(sides: TwoSides) -> None:
    asked = sides.ask({"x": FloatDistribution(0, 1)})
    trial = sides.workers[0].open(asked._trial_id)
    trial.suggest_float("x", 0, 1)
    trial.report(0.5, 0)
    assert trial.should_prune() is False
    told = sides.workers[0].tell(trial, state=TrialState.PRUNED)
    (stored,) = sides.trials
    assert stored.state == TrialState.PRUNED and stored.value == 0.5
    assert (told.state, told.values, told.params) == (stored.state, stored.values, stored.params)
