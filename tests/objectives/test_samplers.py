"""Samplers and pruners travel as text, and opening one runs nothing but Optuna's and NumPy's own classes."""

from __future__ import annotations

import base64
import json
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna import pruners, samplers

from vrampool.errors import InputError
from vrampool.objectives import admitted
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
    for role in ("coordinator", "worker"):
        assert type(open_sampler(spec, role=role)) is type(sampler)


@pytest.mark.parametrize("pruner", PRUNERS, ids=lambda pruner: type(pruner).__name__)
def test_every_pruner_of_optuna_travels(pruner: pruners.BasePruner) -> None:
    opened = open_pruner(dump_pruner(pruner))
    assert type(opened) is type(pruner)
    assert {key for key in vars(opened)} == {key for key in vars(pruner)}


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


def test_workers_draw_other_points_than_the_coordinator_and_each_other() -> None:
    """With the coordinator's state they would propose its points a second time."""
    for spec in (dump_sampler(samplers.RandomSampler(seed=1)), dump_sampler(samplers.TPESampler(seed=1)), None):
        first = {draws(open_sampler(spec, role=role, seed=3), 1)[0] for role in ("coordinator", "worker", "worker")}
        assert len(first) == 3


def test_grids_and_sequences_keep_their_order_everywhere() -> None:
    """They hand out points by number: another order in a worker would give points twice and leave others out."""
    grid = dump_sampler(samplers.GridSampler({"x": list(range(20))}, seed=4))
    orders = [open_sampler(grid, role=role)._all_grids for role in ("coordinator", "worker")]  # type: ignore[attr-defined]
    assert orders[0] == orders[1]
    sequence = dump_sampler(samplers.QMCSampler())
    seeds = [open_sampler(sequence, role=role)._seed for role in ("coordinator", "worker")]  # type: ignore[attr-defined]
    assert seeds[0] == seeds[1]


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
