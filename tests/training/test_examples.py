"""The examples run as they are, on the CPU: first as Optuna runs them, then in a pool."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import optuna
import pytest
from training.blocks import pool_is_built

from vrampool import training
from vrampool.training import runtime

EXAMPLES = Path(__file__).parents[2] / "examples"
#: Each example with the modules it needs.
NEEDS = {
    "plain_pytorch": ("torch", "sklearn"),
    "lightning_digits": ("torch", "sklearn", "lightning"),
    "hf_trainer": ("torch", "sklearn", "transformers", "accelerate"),
    "sklearn_forest": ("sklearn",),
    "lightgbm_digits": ("sklearn", "lightgbm"),
}
#: Parameters that a user would call good, and the value that they must reach; it is well below what they do reach.
GOOD = {
    "plain_pytorch": ({"batch_size": 128, "width": 256, "rate": 5e-3}, 0.9),
    "lightning_digits": ({"batch_size": 64, "width": 32, "rate": 1e-2}, 0.8),
    "hf_trainer": ({"batch_size": 64, "layers": 1, "rate": 5e-3}, 0.4),
    "sklearn_forest": ({"max_depth": 16, "max_features": 0.3, "min_samples_leaf": 1}, 0.9),
    "lightgbm_digits": ({"learning_rate": 0.2, "num_leaves": 16, "max_bin": 63}, 0.5),
}
MINIMISED = {"lightgbm_digits"}


def load(name: str) -> ModuleType:
    """Import an example from its file, or skip with the framework that is missing."""
    for module in NEEDS[name]:
        pytest.importorskip(module, reason=f"examples/{name}.py needs {module}: the dependency group `examples`")
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # datasets are pickled by their module's name when loaders have workers
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _seed_as_the_pool_does():
    """One thread too: two test processes on two cores would wait for each other in every operator."""
    training.apply_settings(seed=0, threads=1, env={})


@pytest.fixture(params=sorted(NEEDS))
def name(request):
    return request.param


def test_every_example_of_this_list_is_there(name):
    assert (EXAMPLES / f"{name}.py").is_file()


def test_a_trial_with_good_parameters_reaches_a_good_value(name):
    example = load(name)
    parameters, threshold = GOOD[name]
    study = optuna.create_study(direction="minimize" if name in MINIMISED else "maximize")
    study.enqueue_trial(parameters)
    study.optimize(example.objective, n_trials=1)
    trial = study.trials[0]
    assert trial.params == parameters, "the parameters are those that the objective asks for"
    assert trial.value is not None
    assert trial.value < threshold if name in MINIMISED else trial.value > threshold


def test_a_trial_is_pruned_when_the_pruner_says_so(name):
    example = load(name)
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=-1.0))
    study.enqueue_trial(GOOD[name][0])
    study.optimize(example.objective, n_trials=1)
    assert study.trials[0].state == optuna.trial.TrialState.PRUNED
    assert len(study.trials[0].intermediate_values) == 1


@pytest.mark.parametrize(
    ("name", "epochs", "steps"),
    [
        # 1198 training images in batches of 128 or 64: full steps, and one for the rest of each epoch.
        ("plain_pytorch", 5, 10),
        ("lightning_digits", 4, 19),
        ("hf_trainer", 4, 19),
    ],
)
def test_optimizer_steps_are_counted_whoever_takes_them(name, epochs, steps, told):
    example = load(name)
    runtime.install(told.runtime())
    study = optuna.create_study()
    study.enqueue_trial(GOOD[name][0])
    study.optimize(example.objective, n_trials=1)
    assert told.steps == epochs * steps
    assert told.hints == [], "their shapes are fixed"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not pool_is_built(), reason="the pool is not complete yet")
def test_the_example_runs_in_a_pool(name, tmp_path, pool_env):
    load(name)
    command = [
        *(sys.executable, "-m", "vrampool", "run", f"{EXAMPLES / name}.py:objective"),
        *("--trials", "2", "--gpu", "cpu", "--direction", "minimize" if name in MINIMISED else "maximize"),
    ]
    env = {**os.environ, **pool_env}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=240, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
