"""Samplers and pruners travel as text, and opening one runs nothing but Optuna's and NumPy's own classes."""

from __future__ import annotations

import base64
import gc
import json
import pickle
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna import pruners, samplers
from optuna.samplers._lazy_random_state import LazyRandomState

from vrampool.errors import InputError
from vrampool.objectives import admitted
from vrampool.objectives.random_states import COORDINATOR, WORKER, RandomStates
from vrampool.objectives.samplers import dump_pruner, dump_sampler, open_pruner, open_sampler

warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)

SAMPLERS = [
    samplers.TPESampler(),
    samplers.TPESampler(seed=3, n_startup_trials=2, multivariate=True),
    samplers.RandomSampler(seed=1),
    samplers.GridSampler({"x": [1, 2, 3], "y": ["a", None]}),
    samplers.BruteForceSampler(seed=2),
    samplers.CmaEsSampler(seed=1),
    samplers.CmaEsSampler(x0={"x": np.float64(1)}, sigma0=0.1),
    samplers.NSGAIISampler(seed=1),
    samplers.NSGAIISampler(crossover=samplers.nsgaii.SBXCrossover()),
    samplers.NSGAIIISampler(seed=1, reference_points=np.eye(3)),
    samplers.QMCSampler(seed=1),
    samplers.GPSampler(seed=1),
    samplers.PartialFixedSampler({"x": 1}, samplers.RandomSampler(seed=1)),
]
PRUNERS = [
    pruners.MedianPruner(),
    pruners.NopPruner(),
    pruners.HyperbandPruner(max_resource=9),
    pruners.SuccessiveHalvingPruner(),
    pruners.PercentilePruner(25.0),
    pruners.PatientPruner(pruners.MedianPruner(), 3),
    pruners.ThresholdPruner(lower=0),
    pruners.WilcoxonPruner(),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_every_sampler_of_optuna_travels(sampler: samplers.BaseSampler) -> None:
    spec = dump_sampler(sampler)
    assert spec is not None
    assert type(open_sampler(spec)) is type(sampler)


@pytest.mark.parametrize("pruner", PRUNERS, ids=lambda pruner: type(pruner).__name__)
def test_every_pruner_of_optuna_travels(pruner: pruners.BasePruner) -> None:
    opened = open_pruner(dump_pruner(pruner))
    assert type(opened) is type(pruner)
    assert set(vars(opened)) == set(vars(pruner))


def test_nothing_given_is_optunas_default() -> None:
    assert dump_sampler(None) is None and dump_pruner(None) is None
    assert type(open_sampler(None)) is samplers.TPESampler
    assert type(open_pruner(None)) is pruners.MedianPruner


def draws(sampler: samplers.BaseSampler, count: int = 5) -> list[float]:
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=count)
    return [trial.params["x"] for trial in study.trials]


def test_a_seed_gives_the_coordinator_the_sequence_that_optuna_gives() -> None:
    spec = dump_sampler(samplers.TPESampler(seed=42))
    assert draws(open_sampler(spec)) == draws(samplers.TPESampler(seed=42))
    assert draws(open_sampler(None, seed=7)) == draws(samplers.TPESampler(seed=7))


def test_each_place_draws_points_of_its_own_and_the_same_ones_again() -> None:
    """With the state it was sent with, every opening would propose the same points."""
    specs = (dump_sampler(samplers.RandomSampler(seed=1)), dump_sampler(samplers.TPESampler(seed=1)), None)
    for spec in specs:
        found: dict[tuple[int, ...], list[float]] = {}
        for key in [
            (COORDINATOR, 3, 0),
            (COORDINATOR, 4, 0),
            (COORDINATOR, 4, 1),
            (WORKER, 3),
            (WORKER, 4),
            (WORKER, 3),
        ]:
            sampler = open_sampler(spec, seed=3)
            states = RandomStates(sampler)
            states.seed_for(*key)
            drawn = draws(sampler, 2)
            assert found.setdefault(key, drawn) == drawn, "the same place, the same numbers"
        points = [point for drawn in found.values() for point in drawn]
        assert len(set(points)) == len(points) == 10


def test_without_a_seed_no_two_openings_agree() -> None:
    spec = dump_sampler(samplers.RandomSampler())
    drawn = set()
    for _ in range(3):
        sampler = open_sampler(spec)
        RandomStates(sampler).seed_for(WORKER, 0)
        drawn.add(draws(sampler, 1)[0])
    assert len(drawn) == 3


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_every_random_state_of_a_sampler_is_seeded(sampler: samplers.BaseSampler) -> None:
    """Those of samplers inside it too: one that was left out would repeat itself in every process."""
    opened = open_sampler(dump_sampler(sampler))
    reachable, seen = [opened], set()
    held = []
    while reachable:
        value = reachable.pop()
        if id(value) not in seen and not isinstance(value, (type, types.ModuleType, types.FunctionType)):
            seen.add(id(value))
            held += [value] if isinstance(value, LazyRandomState) else []
            reachable += gc.get_referents(value)
    assert {id(state) for state in RandomStates(opened)._states} == {id(state) for state in held} != set()


@pytest.mark.parametrize("sampler", [item for item in SAMPLERS if not isinstance(item, samplers.QMCSampler)], ids=str)
def test_a_sampler_that_was_used_before_serves_a_study_in_another_database(
    sampler: samplers.BaseSampler, tmp_path: Path
) -> None:
    """It remembers the id of the study it was used with; the same study has another one in the pool's storage."""

    def objective(trial: optuna.Trial) -> float:
        return float(trial.suggest_int("x", 1, 3) + len(str(trial.suggest_categorical("y", ["a", None]))))

    optuna.create_study(sampler=sampler).optimize(objective, n_trials=3)
    other = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'other.db'}")
    for name in ("first", "second"):
        study = optuna.create_study(study_name=name, storage=other, sampler=open_sampler(dump_sampler(sampler)))
        study.optimize(objective, n_trials=2, catch=ValueError)
        assert not [trial for trial in study.trials if trial.state == optuna.trial.TrialState.RUNNING]


def test_a_class_of_the_users_is_seeded_in_its_own_way() -> None:
    sampler = Own()
    RandomStates(sampler).seed_for(WORKER, 1)
    assert sampler.reseeded == 1


def test_grids_and_sequences_keep_their_order_everywhere() -> None:
    """They hand out points by number: another order in a worker would give points twice and leave others out."""
    grid = dump_sampler(samplers.GridSampler({"x": list(range(20))}, seed=4))
    orders = []
    for key in ((COORDINATOR, 5, 0), (WORKER, 1)):
        opened = open_sampler(grid)
        RandomStates(opened).seed_for(*key)
        orders.append(opened._all_grids)  # type: ignore[attr-defined]
    assert orders[0] == orders[1]
    # Made by name each process would draw its own: it is made once, where it is submitted.
    sequence = dump_sampler("optuna.samplers:QMCSampler")
    seeds = [open_sampler(sequence)._seed for _ in range(2)]  # type: ignore[attr-defined]
    assert seeds[0] == seeds[1]


class Own(samplers.BaseSampler):
    reseeded = 0

    def reseed_rng(self) -> None:
        self.reseeded += 1

    def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: Any, param_distribution: Any) -> Any:
        return 0.5


class Mine(samplers.RandomSampler):
    pass


class MyPruner(pruners.NopPruner):
    pass


@pytest.mark.parametrize("value", [Mine(), samplers.PartialFixedSampler({}, Mine())])
def test_a_class_of_the_users_is_refused_with_the_way_to_submit_it(value: samplers.BaseSampler) -> None:
    with pytest.raises(InputError, match=r"Mine.*sampler='package\.module:make_sampler'"):
        dump_sampler(value)
    with pytest.raises(InputError, match=r"MyPruner.*pruner='package\.module:make_pruner'"):
        dump_pruner(MyPruner())


def test_a_sampler_that_holds_a_lambda_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be sent to the workers"):
        dump_sampler(samplers.TPESampler(gamma=lambda n: 1))


def test_what_is_no_sampler_is_refused() -> None:
    with pytest.raises(InputError, match="must be an Optuna sampler"):
        dump_sampler(pruners.NopPruner())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is MedianPruner and no sampler"):
        open_sampler(dump_pruner(pruners.MedianPruner()))


def test_an_import_path_is_opened_by_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_samplers.py").write_text(
        "import optuna\nclass Theirs(optuna.samplers.RandomSampler): pass\n"
        "def make(): return Theirs(seed=5)\nready = Theirs(seed=6)\nvalue = 3\n"
        "class Needs(optuna.samplers.RandomSampler):\n    def __init__(self, what): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("Theirs", "make", "ready"):
        assert type(open_sampler(dump_sampler(f"their_samplers:{name}"))).__name__ == "Theirs"
    for target, text in (
        ("their_samplers", "must be 'package.module:Class'"),
        ("their_samplers:gone", "cannot be imported"),
        ("not_there:Class", "cannot be imported.*installed here"),
        ("their_samplers:value", "gives int, which is no Optuna sampler"),
        ("their_samplers:Needs", "cannot be made without arguments"),
    ):
        with pytest.raises(InputError, match=text):
            dump_sampler(target)
    sys.modules.pop("their_samplers", None)


def test_an_import_path_is_found_where_the_submitter_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that lives long: not the module of that name that another submission brought, nor an older text."""
    specs = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kept_samplers.py").write_text(
            f"import optuna\nclass Theirs(optuna.samplers.RandomSampler): where = {folder!r}\n"
        )
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(tmp_path / folder))
            specs.append(dump_sampler("kept_samplers:Theirs"))
        sys.modules.pop("kept_samplers", None)
    before = list(sys.path)
    assert [open_sampler(spec).where for spec in (*specs, specs[0])] == ["one", "two", "one"]  # type: ignore[attr-defined]
    assert sys.path == before
    sys.modules.pop("kept_samplers", None)


def test_what_an_import_path_gives_travels_as_an_object_where_it_can() -> None:
    """Then it need not be installed where it is used, and every process has the same one."""
    for path in ("optuna.samplers:RandomSampler", "optuna.samplers:QMCSampler"):
        assert json.loads(dump_sampler(path) or "")["kind"] == "pickle"
    assert json.loads(dump_pruner("optuna.pruners:MedianPruner") or "")["kind"] == "pickle"


class Bomb:
    def __reduce__(self) -> Any:
        return (open, ("/tmp/vrampool-bomb", "w"))


def spec_of(body: bytes) -> str:
    return json.dumps({"kind": "pickle", "class": "x", "optuna": "5", "body": base64.b64encode(body).decode()})


def named(module: str, name: str) -> bytes:
    """Return a pickle that looks a name up in a module, dots and all."""
    words = b"".join(b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name))
    return b"\x80\x04" + words + b"\x93."


@pytest.mark.parametrize(
    "body",
    [
        pickle.dumps(Bomb()),
        b"cos\nsystem\n(S'touch /tmp/vrampool-bomb'\ntR.",
        b"cbuiltins\neval\n(S'1+1'\ntR.",
        b"cbuiltins\ngetattr\n(coptuna\nsamplers\nS'x'\ntR.",
        # By a dotted name, through a module that has imported something sharp.
        named("optuna.samplers._base", "abc.sys.modules"),
        named("optuna.samplers", "TPESampler.__init__.__globals__"),
        # What a module of Optuna has imported is not its own.
        named("optuna.samplers._base", "abc"),
        named("optuna.samplers._lazy_random_state", "np"),
        # Optuna's own, but calling it opens a database, or a file.
        b"coptuna.storages._rdb.storage\nRDBStorage\n(S'sqlite:////tmp/vrampool-bomb'\ntR.",
        b"coptuna.storages.journal\nJournalFileBackend\n(S'/tmp/vrampool-bomb'\ntR.",
        b"cnumpy\nmemmap\n(S'/tmp/vrampool-bomb'\ntR.",
        b"cnumpy.testing._private.utils\nrunstring\n(S'1'\n}tR.",
    ],
)
def test_a_pickle_that_would_run_something_is_refused_before_it_does(body: bytes) -> None:
    Path("/tmp/vrampool-bomb").unlink(missing_ok=True)
    with pytest.raises(InputError, match="which is not Optuna's or NumPy's"):
        open_sampler(spec_of(body))
    with pytest.raises(admitted.NotAdmittedError):
        admitted.loads(body)
    assert not Path("/tmp/vrampool-bomb").exists()


@pytest.mark.parametrize("spec", ["", "[]", "{}", "null", '{"kind": "magic"}', spec_of(b"garbage")])
def test_a_spec_that_cannot_be_read_says_so(spec: str) -> None:
    with pytest.raises(InputError):
        open_sampler(spec)
