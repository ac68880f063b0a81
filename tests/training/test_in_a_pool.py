"""The helpers in a real pool's trial: its lease, its counted steps, its hints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from training.blocks import run_blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
pytest.importorskip("torch")

OBJECTIVES = '''
import torch
from vrampool import training


def fits(trial):
    """Needs 512 MiB for 128 samples, and for 256 more than the lease of 1 GiB and what its cap leaves for threads."""
    torch.set_num_threads(1)
    found = training.find_batch_size(trial, lambda size: float(torch.ones(size, size, size, 64).sum()), start=1024)
    return found.batch_size


def steps(trial):
    """Takes 24 optimizer steps of two pieces each, of shapes that vary."""
    weight = torch.nn.Parameter(torch.ones(2))
    accumulator = training.GradientAccumulator(torch.optim.SGD([weight], lr=1e-3), 2)
    for piece in accumulator.batches(torch.ones(2, 2 + index % 5) for index in range(48)):
        accumulator.backward((weight.sum() * piece).mean(), len(piece))
    accumulator.precision.record(trial)
    return 0.0
'''
SCRIPT = """
import json
import vrampool
from vrampool.storage import attempt_of

with vrampool.Pool() as pool:
    handle = pool.submit("objectives.py:{name}", 1, vram="1GiB").wait(90)
    print(json.dumps([
        {{
            "value": trial.value,
            "attributes": {{key: value for key, value in trial.user_attrs.items() if key.startswith("training:")}},
            "facts": attempt_of(trial).to_json(),
        }}
        for trial in handle.trials
    ]))
"""


def run(name: str, folder: Path, env: dict[str, str]) -> list[dict]:
    (folder / "objectives.py").write_text(OBJECTIVES)
    done = run_blocks([SCRIPT.format(name=name)], folder, env=env, timeout_s=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_batch_is_fitted_into_the_lease_and_the_trial_is_not_retried_for_it(tmp_path, pool_env):
    """1 GiB holds 128 samples beside what torch itself takes; the errors on the way are nobody's fault."""
    trials = run("fits", tmp_path, pool_env)
    assert len(trials) == 1, "it was not retried"
    assert trials[0]["facts"]["end"] == "complete"
    assert trials[0]["attributes"]["training:batch_size"] == trials[0]["value"] == 128


def test_optimizer_steps_reach_the_worker(tmp_path, pool_env):
    (trial,) = run("steps", tmp_path, pool_env)
    assert trial["attributes"]["training:steps"] == 24
    # The child tells of steps at most once a second, but of the twentieth at once: it ends the exclusive use.
    assert 20 <= trial["facts"]["steps"] <= 24


def test_a_hint_reaches_the_trials_facts(tmp_path, pool_env):
    (trial,) = run("steps", tmp_path, pool_env)
    assert any("shapes vary" in hint for hint in trial["facts"]["hints"])
