"""Random numbers: a seed repeats a run of one trial at a time, and nobody ever draws what another has drawn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import optuna
import pytest
from optuna import samplers
from parity import objectives
from support.pools import LivePool
from support.stepped_pool import SteppedPool, plain

Stepped = Callable[..., AbstractContextManager[SteppedPool]]
Points = list[dict[str, Any]]

SEEDED: dict[str, Callable[[], samplers.BaseSampler]] = {
    "Random": lambda: samplers.RandomSampler(seed=5),
    "TPE": lambda: samplers.TPESampler(seed=5, n_startup_trials=4),
    "CMA-ES": lambda: samplers.CmaEsSampler(seed=5, n_startup_trials=2, popsize=4),
    "NSGA-II": lambda: samplers.NSGAIISampler(seed=5, population_size=4),
    "QMC": lambda: samplers.QMCSampler(seed=5),
    "BruteForce": lambda: samplers.BruteForceSampler(seed=5),
    "Grid": lambda: samplers.GridSampler({"x": [0.0, 0.25, 0.5, 1.0], "n": [0, 1, 2, 3]}, seed=5),
}

pytestmark = pytest.mark.filterwarnings("ignore")


def ask(trial: Any) -> float:
    x, n = trial.suggest_float("x", 0, 1, step=0.25), trial.suggest_int("n", 0, 3)
    return float(x + n)


def ask_finely(trial: Any) -> float:
    """One name is asked for now and then only: no plan holds it, so workers draw it."""
    x = trial.suggest_float("x", 0, 1)
    if x < 0.5:
        return float(x + trial.suggest_float("y", 0, 1))
    return float(x)


def points(study: optuna.Study) -> Points:
    return [trial.params for trial in study.trials]


def draws(study: optuna.Study) -> list[float]:
    return [value for trial in study.trials for value in trial.params.values()]


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_repeats_a_run_of_one_trial_at_a_time(stepped: Stepped, name: str) -> None:
    """A51. On whatever number of workers, for the numbers follow from the seed and the trial, not from who draws."""
    found: list[Points] = []
    for workers in (1, 2):
        with stepped(workers=workers) as pool:
            found.append(points(pool.run(ask, 9, sampler=SEEDED[name](), max_concurrent_trials=1).study))
    assert found[0] == found[1]
    assert len({str(point) for point in found[0]}) > 3


def test_another_seed_gives_another_run(stepped: Stepped) -> None:
    found = []
    for seed in (1, 2):
        with stepped() as pool:
            found.append(points(pool.run(ask_finely, 6, sampler=samplers.TPESampler(seed=seed)).study))
    assert not {str(point) for point in found[0]} & {str(point) for point in found[1]}


def test_the_submissions_seed_repeats_a_run_with_optunas_default_sampler(stepped: Stepped) -> None:
    found = []
    for seed in (3, 3, 4):
        with stepped() as pool:
            found.append(points(pool.run(ask_finely, 5, seed=seed, max_concurrent_trials=1).study))
    assert found[0] == found[1] != found[2]


def test_without_a_seed_no_run_is_like_another(stepped: Stepped) -> None:
    found = []
    for _ in range(2):
        with stepped() as pool:
            found.append(points(pool.run(ask_finely, 4, sampler=samplers.TPESampler()).study))
    assert found[0] != found[1]


@pytest.mark.parametrize("name", ["Random", "TPE"])
def test_workers_with_one_seed_never_draw_the_same(stepped: Stepped, name: str) -> None:
    """A51: eight at once, from the very first trials, which no plan holds."""
    with stepped(workers=8) as pool:
        found = draws(pool.run(ask_finely, 16, sampler=SEEDED[name]()).study)
    assert len(set(found)) == len(found)


def test_what_is_added_to_a_study_goes_on_drawing(stepped: Stepped) -> None:
    """By the same sampler object, or by a script that is run once more: its seed would start from the beginning."""
    with stepped(slots=2) as pool:
        for _ in range(3):
            handle = pool.run(ask_finely, 5, study_name="more", sampler=samplers.RandomSampler(seed=1))
        found = draws(handle.study)
        assert len(set(found)) == len(found)


def test_submissions_at_once_on_one_study_draw_different_points(stepped: Stepped) -> None:
    with stepped(slots=4) as pool:
        handles = [
            pool.submit(ask_finely, 6, study_name="both", sampler=samplers.RandomSampler(seed=1)) for _ in range(2)
        ]
        pool.drive(*handles)
        found = draws(handles[0].study)
        assert len(set(found)) == len(found)


def test_a_coordinator_that_takes_over_does_not_begin_anew(stepped: Stepped) -> None:
    with stepped(slots=2) as pool:
        handle = pool.submit(ask_finely, 12, sampler=samplers.RandomSampler(seed=1))
        for turn in range(12):
            if turn in (3, 6):
                pool.restart_coordinator()
            pool.turn()
        pool.drive(handle)
        found = draws(handle.study)
        assert len(set(found)) == len(found)


def test_a_fresh_study_is_planned_with_the_numbers_that_optuna_draws(stepped: Stepped) -> None:
    """The first trial apart, which its worker samples because nothing is known of the space yet."""
    alone = optuna.create_study(sampler=samplers.RandomSampler(seed=9))
    plain(alone, lambda trial: trial.suggest_float("x", 0, 1), 5)
    with stepped() as pool:
        handle = pool.run(lambda trial: trial.suggest_float("x", 0, 1), 6, sampler=samplers.RandomSampler(seed=9))
    assert draws(handle.study)[1:] == draws(alone)


# ---- through real processes --------------------------------------------------------------------------


def test_a_seed_repeats_a_run_through_real_processes(pool: LivePool) -> None:
    """The sampler's numbers by its own seed, the objective's by the submission's."""
    found = []
    for _ in range(2):
        study = optuna.create_study(sampler=samplers.TPESampler(seed=42))
        pool.pool.optimize(study, objectives.chance, n_trials=5, n_jobs=1, seed=7, vram="100MiB")
        found.append([(trial.params, trial.value) for trial in study.trials])
    assert found[0] == found[1]
    assert len({value for _, value in found[0]}) == 5, "each trial has random numbers of its own"


def test_a_study_in_memory_that_is_gone_on_with_draws_new_points(pool: LivePool) -> None:
    study = optuna.create_study(sampler=samplers.RandomSampler(seed=1))
    for _ in range(2):
        pool.pool.optimize(study, objectives.draw, n_trials=4, vram="100MiB")
    found = draws(study)
    assert len(set(found)) == len(found) == 8
