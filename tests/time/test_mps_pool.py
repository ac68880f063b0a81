"""A whole pool with MPS, over a driver library and a control program of our own: what needs a card is left out.

Not run on a card yet: that CUDA honours the variables when they come at hand-over, and what its errors say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support import mps_control
from support.fake_nvml import GIB, FakeNvml
from support.pools import LivePool, PoolMaker, facts_of
from support.waiting import until

from vrampool.queueing import MpsState

MIB = 1024**2


@pytest.fixture(scope="module")
def mps_pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    """One pool for the tests here: each brings an objective of its own, which MPS does not know yet."""
    folder = tmp_path_factory.mktemp("card")
    fake = FakeNvml(folder / "nvml")
    fake.add_card(24 * GIB)
    tools = folder / "tools"
    tools.mkdir()
    env = {**fake.env, "PATH": f"{mps_control.install(tools)}:{os.environ['PATH']}"}
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("pool"))
    made = maker(gpu="all", share=False, budget="75%", mps="on", concurrency="memory", max_trials=6, env=env)
    until(lambda: [item for item in made.devices() if item.mps is not None and item.mps.state == "on"], what="MPS")
    yield made
    maker.close()


def test_the_first_trial_runs_outside_and_the_next_ones_are_clients_held_to_their_lease(mps_pool: LivePool):
    def objective(trial):
        import os

        names = [name for name in os.environ if name.startswith("CUDA_MPS")]
        trial.set_user_attr("mps", {name: os.environ[name] for name in names})
        return 0.0

    canary = mps_pool.run(objective, 1, vram="1GiB")
    assert canary.trials[0].user_attrs["mps"] == {}
    facts = facts_of(canary.trials[0])
    assert (facts.mps, facts.mps_reason) == (False, "its objective has not run well outside MPS yet")
    clients = mps_pool.run(objective, 2, vram="1GiB", env={"CUDA_MPS_PIPE_DIRECTORY": "/somewhere/else"})
    for trial in clients.trials:
        variables = trial.user_attrs["mps"]
        assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1024M"
        assert variables["CUDA_MPS_PIPE_DIRECTORY"].startswith("/tmp/vpm-")
        assert facts_of(trial).mps is True


def test_a_fault_that_all_clients_are_told_of_loses_no_trial(mps_pool: LivePool, tmp_path: Path):
    """Each fails with the same error. Outside MPS, where all are tried again, only the culprit does."""
    shared = tmp_path / "shared"
    shared.mkdir()

    def objective(trial):
        import os
        import time

        number = trial.suggest_int("number", 0, 100)
        client = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
        (Path(shared) / f"{'in' if client else 'out'}-{number}").touch()
        illegal = RuntimeError("CUDA error: an illegal memory access was encountered")
        if number == 13:
            end_s = time.monotonic() + 20
            while client and len(list(Path(shared).glob("in-*"))) < 4 and time.monotonic() < end_s:
                time.sleep(0.01)
            (Path(shared) / "fault").touch()
            raise illegal
        end_s = time.monotonic() + 20
        while client and time.monotonic() < end_s:
            if (Path(shared) / "fault").exists():
                raise illegal
            time.sleep(0.01)
        return float(number)

    mps_pool.run(objective, 1, vram="1GiB", points=[{"number": 0}])
    numbers = [13, 1, 2, 3]
    handle = mps_pool.run(objective, 4, vram="1GiB", points=[{"number": number} for number in numbers], catch=None)
    final = {trial.params["number"]: trial for trial in handle.finished_roots()}
    assert {number for number, trial in final.items() if trial.state == TrialState.COMPLETE} == {1, 2, 3}
    culprit = facts_of(final[13])
    assert culprit.end == "failed" and "illegal memory access" in culprit.text and culprit.mps is False
    first = [facts_of(trial) for trial in handle.trials if facts_of(trial).mps]
    assert len(first) == 4 and all(facts.end == "preempted" for facts in first)
    assert "took down all clients of MPS" in first[0].text
    assert all("left MPS" in facts_of(trial).mps_reason for trial in final.values())
    told = until(lambda: [item.mps for item in mps_pool.devices() if item.mps and item.mps.outside], what="the beat")[0]
    assert told.state == "on" and [name for name in told.outside if "objective" in name]
    assert all("took down all clients" in why for why in told.outside.values())


@pytest.mark.slow
def test_without_the_control_program_the_pool_works_and_says_so(make_pool: PoolMaker, tmp_path: Path):
    fake = FakeNvml(tmp_path / "nvml")
    fake.add_card(24 * GIB)
    pool = make_pool(gpu="all", share=False, budget="75%", mps="auto", env=fake.env)
    handle = pool.run(lambda trial: 0.0, 2, vram="1GiB")
    assert all(trial.state == TrialState.COMPLETE for trial in handle.trials)
    assert "MPS is off: nvidia-cuda-mps-control is not installed" in pool.logs()
    assert all(facts_of(trial).mps is None for trial in handle.trials)
    assert [item.mps for item in pool.devices()] == [MpsState("off", "nvidia-cuda-mps-control is not installed")]
