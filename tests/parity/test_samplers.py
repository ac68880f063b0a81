"""Every sampler and pruner of Optuna through the pool, as an object and by import path, on spaces of every shape."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import optuna
import pytest
from optuna import pruners, samplers
from optuna.trial import TrialState
from parity import objectives
from support.pools import LivePool
from support.stepped_pool import SteppedPool, plain

Stepped = Callable[..., AbstractContextManager[SteppedPool]]
COMPLETE, PRUNED = TrialState.COMPLETE, TrialState.PRUNED

GRID = {"x": [0.0, 0.5, 1.0], "n": [1, 2], "kind": ["a", "b"]}
SAMPLERS: dict[str, Callable[[], samplers.BaseSampler]] = {
    "Random": lambda: samplers.RandomSampler(seed=1),
    "TPE": lambda: samplers.TPESampler(seed=1, n_startup_trials=4),
    "TPE group": lambda: samplers.TPESampler(seed=1, n_startup_trials=4, multivariate=True, group=True),
    "CMA-ES": lambda: samplers.CmaEsSampler(seed=1, n_startup_trials=2, popsize=4),
    "GP": lambda: samplers.GPSampler(seed=1, n_startup_trials=4),
    "NSGA-II": lambda: samplers.NSGAIISampler(seed=1, population_size=6),
    "NSGA-III": lambda: samplers.NSGAIIISampler(seed=1, population_size=6),
    "QMC": lambda: samplers.QMCSampler(seed=1),
    "Grid": lambda: samplers.GridSampler(GRID, seed=1),
    "BruteForce": lambda: samplers.BruteForceSampler(seed=1),
    "fixed": lambda: samplers.PartialFixedSampler({"n": 2}, samplers.RandomSampler(seed=1)),
}
PRUNERS: dict[str, Callable[[], pruners.BasePruner]] = {
    "Median": lambda: pruners.MedianPruner(n_startup_trials=2),
    "Percentile": lambda: pruners.PercentilePruner(25.0, n_startup_trials=2),
    "SuccessiveHalving": lambda: pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
    "Hyperband": lambda: pruners.HyperbandPruner(min_resource=1, max_resource=8, reduction_factor=2),
    "Wilcoxon": lambda: pruners.WilcoxonPruner(n_startup_steps=2),
    "Patient": lambda: pruners.PatientPruner(pruners.MedianPruner(n_startup_trials=2), patience=1),
    "Threshold": lambda: pruners.ThresholdPruner(upper=5.0),
    "Nop": lambda: pruners.NopPruner(),
}

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def mixed(trial: Any) -> float:
    x = trial.suggest_float("x", 0, 1, step=0.5)
    return float(x + trial.suggest_int("n", 1, 2) + (trial.suggest_categorical("kind", ["a", "b"]) == "a"))


def conditional(trial: Any) -> float:
    """Depending on the kind, other parameters, and one whose range follows from another's value."""
    if trial.suggest_categorical("kind", ["deep", "wide"]) == "deep":
        depth = trial.suggest_int("depth", 1, 5)
        return float(depth + trial.suggest_int("skip", 1, depth))
    return float(trial.suggest_float("width", 1, 64, log=True))


def check_conditional(trial: optuna.trial.FrozenTrial) -> None:
    if trial.params["kind"] == "deep":
        assert list(trial.params) == ["kind", "depth", "skip"]
        assert 1 <= trial.params["skip"] <= trial.params["depth"] <= 5
    else:
        assert list(trial.params) == ["kind", "width"]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_samples_what_the_objective_asks_for(stepped: Stepped, name: str) -> None:
    """Four trials at once on two workers; as many, and as many different ones, as Optuna alone tries."""
    count = 7 if name == "GP" else 13  # each of its proposals is a fit
    with stepped(workers=2, slots=2) as pool:
        handle = pool.run(mixed, count, sampler=SAMPLERS[name]())
        trials = [trial for trial in handle.study.trials if trial.state == COMPLETE]
    alone = optuna.create_study(sampler=SAMPLERS[name]())
    if name in ("Grid", "BruteForce"):
        assert len({tuple(trial.params.values()) for trial in trials}) == 12, "the whole grid, then it ended the study"
        assert 12 <= len(trials) <= 12 + 3
        return
    plain(alone, mixed, count, at_once=4)
    assert len(trials) == count
    for trial in trials:
        assert list(trial.params) == ["x", "n", "kind"] and trial.params["x"] in (0.0, 0.5, 1.0)
    if name == "fixed":
        assert {trial.params["n"] for trial in trials} == {2}
    points = [{tuple(trial.params.values()) for trial in some} for some in (trials, alone.trials)]
    assert len(points[0]) >= min(len(points[1]), 7) - 2


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name not in ("Grid", "fixed")])
def test_a_sampler_samples_a_conditional_space(stepped: Stepped, name: str) -> None:
    """No trial has a parameter that it did not ask for, nor a value outside the range that it asked for."""
    objective = conditional if name != "BruteForce" else objectives.tree
    count = 7 if name == "GP" else 10
    with stepped(workers=2, slots=2) as pool:
        handle = pool.run(objective, count, sampler=SAMPLERS[name]())
        trials = [trial for trial in handle.study.trials if trial.state == COMPLETE]
    if name == "BruteForce":
        assert len({tuple(trial.params.items()) for trial in trials}) == 5
        return
    assert len(trials) == count
    for trial in trials:
        check_conditional(trial)


def test_a_space_that_changes_in_the_middle_of_a_study(stepped: Stepped) -> None:
    """Ranges grow and names come and go, as when a study is gone on with after an edit."""

    def before(trial: Any) -> float:
        return float(trial.suggest_float("x", 0, 1) + trial.suggest_float("gone", 0, 1))

    def after(trial: Any) -> float:
        return float(trial.suggest_float("x", 5, 9) + trial.suggest_int("new", 1, 3))

    for name in ("TPE", "CMA-ES", "QMC"):
        with stepped(slots=3) as pool:
            pool.run(before, 5, study_name="s", sampler=SAMPLERS[name]())
            handle = pool.run(after, 5, study_name="s", sampler=SAMPLERS[name]())
            for trial in handle.trials:
                assert trial.state == COMPLETE
                assert list(trial.params) == ["x", "new"] and 5 <= trial.params["x"] <= 9


@pytest.mark.parametrize("name", PRUNERS)
def test_a_pruner_prunes_what_it_prunes_in_optuna(stepped: Stepped, name: str) -> None:
    """Deterministic trials, one after the other: the same ones, at the same steps."""

    def objective(trial: Any) -> float:
        quality = (trial.number * 5) % 7
        for step in range(8):
            trial.report(float(quality + abs(step - 4) * (quality % 2)), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return float(quality)

    def seen(study: optuna.Study) -> list[tuple[str, int]]:
        return [(trial.state.name, len(trial.intermediate_values)) for trial in study.trials]

    alone = optuna.create_study(pruner=PRUNERS[name](), study_name="p", sampler=samplers.RandomSampler())
    plain(alone, objective, 12)
    with stepped() as pool:
        handle = pool.run(objective, 12, pruner=PRUNERS[name](), study_name="p", sampler=samplers.RandomSampler())
        assert seen(handle.study) == seen(alone)
    assert ("PRUNED" in {state for state, _ in seen(alone)}) == (name != "Nop")


def test_constraints_reach_the_samplers_that_heed_them(stepped: Stepped) -> None:
    """Trials that say they are over a limit are taken for worse, as in Optuna."""

    def objective(trial: Any) -> float:
        x = trial.suggest_float("x", 0, 1)
        trial.set_constraint("limit", x - 0.5)
        return -float(x)

    with stepped(slots=2) as pool:
        handle = pool.run(objective, 30, sampler=samplers.TPESampler(seed=1, n_startup_trials=8))
        assert handle.best_trial.params["x"] <= 0.5
        late = [trial.params["x"] for trial in handle.study.trials[15:]]
        assert sum(x > 0.75 for x in late) <= 3, "who does not heed them goes to 1"


def test_several_objectives_have_their_front(stepped: Stepped) -> None:
    def objective(trial: Any) -> tuple[float, float]:
        x = trial.suggest_float("x", 0, 1)
        return float(x), 1 - float(x) ** 2

    with stepped(slots=4) as pool:
        sampler = samplers.NSGAIISampler(seed=1, population_size=8)
        handle = pool.run(objective, 24, sampler=sampler, directions=["minimize", "minimize"])
        assert len(handle.study.trials) == 24 and len(handle.best_trials) > 3


# ---- through real processes --------------------------------------------------------------------------

OBJECTS = [
    ("TPE", "Median"),
    ("CMA-ES", "SuccessiveHalving"),
    ("NSGA-II", "Hyperband"),
    ("QMC", "Patient"),
    ("GP", "Wilcoxon"),
    ("Random", "Threshold"),
    ("Grid", "Nop"),
    ("BruteForce", "Percentile"),
]
BY_PATH = [
    ("optuna.samplers:TPESampler", "optuna.pruners:MedianPruner"),
    ("optuna.samplers:CmaEsSampler", "optuna.pruners:HyperbandPruner"),
    ("optuna.samplers:QMCSampler", "optuna.pruners:SuccessiveHalvingPruner"),
    ("optuna.samplers:BruteForceSampler", "optuna.pruners:WilcoxonPruner"),
    ("parity.samplers:small_steps", "optuna.pruners:NopPruner"),
]


@pytest.mark.parametrize(("sampler", "pruner"), OBJECTS)
def test_objects_travel_to_the_pool(pool: LivePool, sampler: str, pruner: str) -> None:
    handle = pool.run(objectives.look, 3, sampler=SAMPLERS[sampler](), pruner=PRUNERS[pruner]())
    check_kinds(handle, SAMPLERS[sampler](), PRUNERS[pruner]())


@pytest.mark.parametrize(("sampler", "pruner"), BY_PATH)
def test_import_paths_travel_to_the_pool(pool: LivePool, sampler: str, pruner: str) -> None:
    handle = pool.run(objectives.look, 2, sampler=sampler, pruner=pruner)
    assert [trial.state for trial in handle.trials] == [COMPLETE] * 2
    kinds = handle.trials[0].user_attrs["kinds"]
    assert kinds[1] == pruner.partition(":")[2]
    assert kinds[0] == (sampler.partition(":")[2] if "optuna" in sampler else "CmaEsSampler")


def check_kinds(handle: Any, sampler: object, pruner: object) -> None:
    assert {trial.state for trial in handle.trials} <= {COMPLETE, PRUNED}
    for trial in handle.trials:
        assert trial.user_attrs["kinds"] == [type(sampler).__name__, type(pruner).__name__]


def test_a_sampler_and_a_pruner_of_the_users_own_come_by_import_path(pool: LivePool) -> None:
    """A28: from where he keeps them, which is not where the pool was started; as objects they are refused."""
    handle = pool.run(objectives.look, 3, sampler="parity.samplers:Middle", pruner="parity.samplers:AtSecondStep")
    assert [trial.state for trial in handle.trials] == [PRUNED] * 3, handle.failures()
    for trial in handle.trials:
        assert trial.params["x"] == 0.5 and len(trial.intermediate_values) == 2
        assert trial.user_attrs["kinds"] == ["Middle", "AtSecondStep"]


def test_none_given_is_optunas_default(pool: LivePool) -> None:
    handle = pool.run(objectives.look, 1)
    assert handle.trials[0].user_attrs["kinds"] == ["TPESampler", "MedianPruner"]


def test_no_pruner_means_that_nothing_is_pruned(pool: LivePool) -> None:
    """A28: with the default one, Optuna's `load_study` would prune half of these."""
    study = optuna.create_study(sampler=samplers.RandomSampler(seed=1), pruner=pruners.NopPruner())
    pool.pool.optimize(study, objectives.reports, n_trials=8, vram="100MiB")
    assert [trial.state for trial in study.trials] == [COMPLETE] * 8


def test_what_cannot_be_imported_where_it_is_needed_is_told(pool: LivePool, tmp_path, monkeypatch) -> None:
    """The submission fails with the reason; the coordinator goes on."""
    (tmp_path / "passing_samplers.py").write_text(
        "import optuna\nclass Mine(optuna.samplers.RandomSampler): pass\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from vrampool.objectives import samplers as sending

    dump = sending.dump_sampler

    def dump_and_remove(sampler: Any) -> Any:
        found = dump(sampler)
        (tmp_path / "passing_samplers.py").unlink()
        return found

    monkeypatch.setattr("vrampool.asking.dump_sampler", dump_and_remove)
    handle = pool.submit(objectives.draw, 2, sampler="passing_samplers:Mine").wait(60)
    assert handle.state == "failed" and "'passing_samplers:Mine' cannot be imported" in handle.reason
    assert handle.trials == []
    monkeypatch.setattr("vrampool.asking.dump_sampler", dump)
    assert pool.run(objectives.draw, 1).state == "done"
