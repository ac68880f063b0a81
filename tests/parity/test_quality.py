"""The best value that a search finds in the pool is that of plain Optuna with as many trials at once, within noise."""

from __future__ import annotations

import math
import random
import statistics
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import optuna
import pytest
from optuna import samplers
from parity.samplers import Noting
from support.stepped_pool import SteppedPool, plain

Stepped = Callable[..., AbstractContextManager[SteppedPool]]
AT_ONCE = 4
#: So rarely chance alone may make the pool look so much worse.
ALPHA = 0.01

pytestmark = pytest.mark.filterwarnings("ignore")


def branin(trial: Any) -> float:
    x, y = trial.suggest_float("x", -5, 10), trial.suggest_float("y", 0, 15)
    return float(
        (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10
    )


def mixed(trial: Any) -> float:
    """Five parameters of all kinds, as a training has them."""
    rate = math.log10(trial.suggest_float("rate", 1e-5, 1, log=True))
    width = math.log2(trial.suggest_int("width", 8, 1024, log=True))
    drop = trial.suggest_float("drop", 0, 0.9, step=0.1)
    kind = trial.suggest_categorical("kind", ["adam", "sgd", "lion"])
    layers = trial.suggest_int("layers", 1, 6)
    return (
        float(
            (rate + 2.5) ** 2 + (width - 7) ** 2 / 4 + (drop - 0.3) ** 2 * 5 + {"adam": 0, "sgd": 1, "lion": 0.4}[kind]
        )
        + abs(layers - 3) * 0.3
    )


def conditional(trial: Any) -> float:
    if trial.suggest_categorical("kind", ["deep", "wide"]) == "deep":
        return float((trial.suggest_float("a", -3, 3) - 1) ** 2 + (trial.suggest_float("b", -3, 3) + 1) ** 2)
    return float(0.3 + (trial.suggest_float("c", -10, 10) - 4) ** 2)


def lasts(trial: optuna.trial.FrozenTrial) -> float:
    """Trials take unlike times: between 1 and 3, as their parameters have it."""
    return 2 + math.sin(zlib.crc32(str(sorted(trial.params.items())).encode()))


def lasts_by_number(trial: optuna.trial.FrozenTrial) -> float:
    return 1.0 + (trial.number * 7 % 5)


def best_alone(objective: Any, sampler: samplers.BaseSampler, n_trials: int) -> float:
    study = optuna.create_study(sampler=sampler)
    plain(study, objective, n_trials, at_once=AT_ONCE, lasts=lasts)
    return study.best_value


def chance_of_as_much(first: list[float], second: list[float]) -> float:
    """Return how often chance alone makes the second list so much worse than the first, by shuffling them together.

    Ranks are compared, so that one wild value does not decide.
    """
    values = first + second
    ranks = [sum(other < value for other in values) for value in values]
    seen = sum(ranks[len(first) :])
    shuffled = random.Random(0)
    as_much = 0
    for _ in range(4000):
        shuffled.shuffle(ranks)
        as_much += sum(ranks[len(first) :]) >= seen
    return as_much / 4000


SEARCHES: dict[str, tuple[Any, Callable[[int], samplers.BaseSampler], int]] = {
    "Branin, TPE": (branin, lambda seed: samplers.TPESampler(seed=seed), 40),
    "Branin, CMA-ES": (branin, lambda seed: samplers.CmaEsSampler(seed=seed), 40),
    "mixed, TPE": (mixed, lambda seed: samplers.TPESampler(seed=seed), 40),
    "mixed, NSGA-II": (mixed, lambda seed: samplers.NSGAIISampler(seed=seed, population_size=10), 40),
    "conditional, TPE": (conditional, lambda seed: samplers.TPESampler(seed=seed), 40),
    "Branin, QMC": (branin, lambda seed: samplers.QMCSampler(seed=seed), 32),
    "Branin, GP": (branin, lambda seed: samplers.GPSampler(seed=seed, n_startup_trials=6), 18),
}


@pytest.mark.parametrize(("workers", "slots"), [(1, 4), (2, 2), (4, 1)])
def test_a_trial_is_asked_for_as_late_as_in_optuna(stepped: Stepped, workers: int, slots: int) -> None:
    """Every result that Optuna's sampler would have, the pool's has too; and it sees every trial that runs or waits.

    A deeper queue, or trials that wait unseen, would cost quality long before the test below could show it.
    """
    alone = optuna.create_study(sampler=Noting())
    plain(alone, branin, 20, at_once=AT_ONCE, lasts=lasts_by_number)
    with stepped(workers=workers, slots=slots) as pool:
        handle = pool.run(branin, 20, sampler="parity.samplers:Noting", lasts=lasts_by_number)
        found = [trial.system_attrs["noted"] for trial in handle.study.trials]
    assert found == [trial.system_attrs["noted"] for trial in alone.trials]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_in_the_pool_ends_as_well_as_one_of_optuna_alone(stepped: Stepped, name: str) -> None:
    objective, sampler, n_trials = SEARCHES[name]
    seeds = range(8 if "GP" in name else 12)
    alone = [best_alone(objective, sampler(seed), n_trials) for seed in seeds]
    found = []
    with stepped(workers=2, slots=2) as pool:
        for seed in seeds:
            handle = pool.run(objective, n_trials, sampler=sampler(seed), lasts=lasts)
            found.append(handle.best_value)
    told = f"{name}: alone {statistics.median(alone):.3g}, in the pool {statistics.median(found):.3g}"
    print(told)
    assert chance_of_as_much(alone, found) > ALPHA, told
