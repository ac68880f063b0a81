"""What the coordinator's sampler sees, and what its asking leaves in the storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, BruteForceSampler, CmaEsSampler, GridSampler, RandomSampler, TPESampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import Trial, TrialState
from support.two_sides import Statements, TwoSides, two_sides

from vrampool.storage import Mark, QueueView, claim, fail_lost, load_plan, mark_of

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

SPACE: dict[str, BaseDistribution] = {"x": FloatDistribution(0, 1), "n": IntDistribution(1, 9)}


@pytest.fixture
def open_sides(ready_url: str) -> Iterator[Callable[..., TwoSides]]:
    opened: list[TwoSides] = []

    def opener(sampler: Callable[[int], BaseSampler], **kwargs: object) -> TwoSides:
        opened.append(two_sides(ready_url, sampler, **kwargs))  # type: ignore[arg-type]
        return opened[-1]

    yield opener
    for sides in opened:
        sides.close()


def random(seed: int) -> BaseSampler:
    return RandomSampler(seed=seed)


def test_a_trial_is_born_waiting_with_its_mark_in_one_write(open_sides: Callable[..., TwoSides]) -> None:
    """Whoever dies right after this write leaves a trial that another coordinator recognises."""
    sides = open_sides(random)
    statements = Statements(sides.storage)
    trial = sides.study.ask(fixed_distributions=SPACE)

    assert statements.commits == 1
    (stored,) = sides.trials
    assert stored.state == TrialState.WAITING and stored.datetime_start is None
    assert mark_of(stored) == Mark("s1")
    assert trial.number == 0 and set(trial.params) == {"x", "n"}


def test_asking_stores_no_parameters_only_the_plan_is_kept(open_sides: Callable[..., TwoSides]) -> None:
    sides = open_sides(random)
    trial = sides.ask(SPACE)
    (stored,) = sides.trials
    assert stored.params == {} and stored.distributions == {}
    assert load_plan(stored.user_attrs["vrampool:plan"]) == (trial.params, SPACE)


def test_what_was_read_just_now_is_shown_with_the_trial_that_is_made_and_not_read_again(
    open_sides: Callable[..., TwoSides],
) -> None:
    sides = open_sides(random)
    sides.ask(SPACE)
    view = sides.study._storage
    assert isinstance(view, QueueView)
    view.read = sides.trials
    claim(sides.storage, sides.trials[0]._trial_id, "w1")
    optuna.load_study(study_name="s", storage=sides.storage).enqueue_trial({"x": 0.5})
    made = sides.study.ask(fixed_distributions=SPACE)
    seen = view.get_all_trials(sides.study._study_id, deepcopy=False)
    assert [trial.number for trial in seen] == [0, made.number] == [0, 2]
    assert all(trial.state == TrialState.RUNNING for trial in seen)
    view.read = None
    assert [trial.number for trial in view.get_all_trials(sides.study._study_id, deepcopy=False)] == [0, 1, 2]


def test_ask_never_pops_a_waiting_trial(open_sides: Callable[..., TwoSides]) -> None:
    sides = open_sides(random)
    optuna.load_study(study_name="s", storage=sides.storage).enqueue_trial({"x": 0.5})
    numbers = [sides.ask(SPACE).number for _ in range(4)]
    assert numbers == [1, 2, 3, 4]
    assert [trial.state for trial in sides.trials] == [TrialState.WAITING] * 5


def test_waiting_trials_of_ours_look_as_if_they_ran_with_their_plan(open_sides: Callable[..., TwoSides]) -> None:
    sides = open_sides(random)
    optuna.load_study(study_name="s", storage=sides.storage).enqueue_trial({"x": 0.5})
    asked = sides.ask(SPACE)
    started = sides.ask(SPACE)
    assert claim(sides.storage, started._trial_id, "w1")  # has not asked for a parameter yet

    seen = sides.study.get_trials()
    assert [trial.state for trial in seen] == [TrialState.WAITING, TrialState.RUNNING, TrialState.RUNNING]
    assert [trial.params for trial in seen] == [{}, asked.params, started.params]
    assert [trial.number for trial in sides.study.get_trials(states=(TrialState.RUNNING,))] == [1, 2]
    assert sides.study.get_trials(states=(TrialState.WAITING,)) == []
    assert [trial.number for trial in sides.study.get_trials(states=tuple(TrialState))] == [1, 2]
    assert sides.trials[1].state == TrialState.WAITING, "the disguise is the view's alone"
    assert sides.trials[1].params == {}


def test_a_running_trial_that_has_asked_for_parameters_is_shown_with_those(open_sides: Callable[..., TwoSides]) -> None:
    """In another branch of a conditional space its plan would be wrong."""
    sides = open_sides(random)
    trial = sides.workers[0].open(sides.ask(SPACE)._trial_id)
    n = trial.suggest_int("n", 1, 9)
    (seen,) = sides.study.get_trials()
    assert seen.params == {"n": n}


def test_a_trial_that_died_before_its_first_parameter_is_hidden_from_samplers(
    open_sides: Callable[..., TwoSides],
) -> None:
    sides = open_sides(random)
    trial = sides.ask()
    assert claim(sides.storage, trial._trial_id, "w1") and fail_lost(sides.storage, trial._trial_id, "gone")
    assert sides.study.get_trials(states=(TrialState.FAIL,)) == []
    assert len(sides.study.trials) == 1, "people see it"


def test_a_template_passes_as_it_is(open_sides: Callable[..., TwoSides]) -> None:
    sides = open_sides(random)
    sides.study.add_trial(optuna.create_trial(value=1.0, params={"x": 0.5}, distributions={"x": SPACE["x"]}))
    (stored,) = sides.trials
    assert stored.state == TrialState.COMPLETE and stored.params == {"x": 0.5} and mark_of(stored) is None


def test_a_grid_waits_as_a_whole_without_a_point_twice(open_sides: Callable[..., TwoSides]) -> None:
    grid: dict[str, list[float | str]] = {"x": [0.0, 0.5, 1.0], "c": ["a", "b"]}
    space: dict[str, BaseDistribution] = {"x": FloatDistribution(0, 1), "c": CategoricalDistribution(["a", "b"])}
    sides = open_sides(lambda seed: GridSampler(grid, seed=7))
    asked = [sides.ask(space) for _ in range(6)]
    assert {(trial.params["x"], trial.params["c"]) for trial in asked} == set(product(grid["x"], grid["c"]))

    done = [sides.workers[0].run(trial._trial_id, lambda t: t.suggest_float("x", 0, 1)) for trial in asked]
    assert [trial.params["x"] for trial in done] == [trial.params["x"] for trial in asked]


@pytest.mark.parametrize("depth", [1, 3])
def test_a_brute_force_search_meets_every_leaf_once(open_sides: Callable[..., TwoSides], depth: int) -> None:
    """It samples in the workers, without a plan, past trials that died before their first parameter."""
    sides = open_sides(lambda seed: BruteForceSampler(seed=seed), workers=2)

    def objective(trial: Trial) -> float:
        branch = trial.suggest_categorical("c", ["a", "b"])
        return float(trial.suggest_int("n", 1, 4) if branch == "a" else trial.suggest_float("u", 0, 1, step=0.25))

    for _ in range(2):
        dead = sides.ask()
        assert claim(sides.storage, dead._trial_id, "w9") and fail_lost(sides.storage, dead._trial_id, "gone")
    sides.drive(objective, 9, depth=depth, space=dict)

    leaves = [tuple(trial.params.items()) for trial in sides.trials if trial.state == TrialState.COMPLETE]
    assert len(leaves) == len(set(leaves)) == 9


def test_two_workers_at_once_do_not_draw_the_same_leaf(open_sides: Callable[..., TwoSides]) -> None:
    """Samplers read other trials anew at each draw, even when the last reading is of this very moment."""
    sides = open_sides(lambda seed: BruteForceSampler(seed=3), workers=2)
    for worker in sides.workers:
        worker.study.get_trials()
    first, second = (worker.open(sides.ask()._trial_id) for worker in sides.workers)
    assert first.suggest_int("a", 0, 1) != second.suggest_int("a", 0, 1)


@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(lambda seed: CmaEsSampler(seed=seed, warn_independent_sampling=False), id="cma"),
        pytest.param(lambda seed: TPESampler(seed=seed, n_startup_trials=4), id="tpe"),
    ],
)
def test_trials_asked_ahead_differ_and_are_run_as_they_were_asked(
    open_sides: Callable[..., TwoSides], sampler: Callable[[int], BaseSampler]
) -> None:
    sides = open_sides(sampler, workers=2)
    space = IntersectionSearchSpace(include_pruned=True)

    def objective(trial: Trial) -> float:
        x, y = trial.suggest_float("x", -5, 5), trial.suggest_float("y", -5, 5)
        return (x - 1) ** 2 + y**2

    sides.drive(objective, 12, depth=2, space=lambda: space.calculate(sides.study))

    ran = sides.trials
    points = [tuple(trial.params.items()) for trial in ran]
    assert len(set(points)) == 12
    planned = [trial for trial in ran if "vrampool:plan" in trial.user_attrs]
    assert len(planned) >= 9, "once a trial has finished, every next one is planned"
    for trial in planned:
        assert trial.params == load_plan(trial.user_attrs["vrampool:plan"])[0]


def test_the_worker_leaves_the_samplers_own_attributes_alone(open_sides: Callable[..., TwoSides]) -> None:
    """Sampled a second time, a trial would carry the generation of one point and the parameters of another."""
    sides = open_sides(lambda seed: CmaEsSampler(seed=seed, warn_independent_sampling=False))
    space: dict[str, BaseDistribution] = {"x": FloatDistribution(-5, 5), "y": FloatDistribution(-5, 5)}

    def objective(trial: Trial) -> float:
        return trial.suggest_float("x", -5, 5) ** 2 + trial.suggest_float("y", -5, 5) + trial.suggest_float("z", 0, 1)

    sides.drive(objective, 3, depth=1, space=lambda: space)
    asked = sides.ask(space)
    before = sides.storage.get_trial(asked._trial_id).system_attrs
    done = sides.workers[0].run(asked._trial_id, objective)
    assert before and done.system_attrs == before


def test_nothing_is_read_to_look_for_a_trial_to_pop(open_sides: Callable[..., TwoSides]) -> None:
    sides = open_sides(random)
    view = QueueView(sides.storage, Mark("s1"))
    statements = Statements(sides.storage)
    assert view.get_all_trials(sides.study_id, states=(TrialState.WAITING,)) == []
    assert statements.texts == []
