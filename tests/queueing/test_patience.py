"""A submission that finds no room beside others gets a trial all the same, once the age limit is over."""

from __future__ import annotations

import time

import optuna
import pytest
from support import stepped_pool as stepped
from support.stepped_pool import BUDGET_BYTES, SteppedPool, stepped_pool

from vrampool.coordinator.patience import Patience

LIMIT_S = 120.0


def test_it_is_over_after_the_limit_and_tells_how_long_it_was():
    patience = Patience(LIMIT_S)
    assert patience.exhausted(["a"], 1_000.0) == {}
    assert patience.exhausted(["a", "b"], 1_100.0) == {}
    assert patience.exhausted(["a", "b"], 1_130.0) == {"a": 130.0}


def test_whoever_found_room_meanwhile_begins_anew():
    patience = Patience(LIMIT_S)
    patience.exhausted(["a"], 1_000.0)
    patience.exhausted([], 1_050.0)
    assert patience.exhausted(["a"], 1_130.0) == {}
    assert patience.exhausted(["a"], 1_250.0) == {"a": 120.0}
    patience.forget()
    assert patience.exhausted(["a"], 1_260.0) == {}


@pytest.fixture
def pool(valkey, tmp_path):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with stepped_pool(valkey, tmp_path, slots=2) as made:
        yield made


def keep_busy(pool: SteppedPool, turns: int) -> None:
    for _ in range(turns):
        pool.turn(lambda trial: 1.0 if trial.number else 0.5)  # so that the device is never idle


def submit_large(pool: SteppedPool, vram: int | str):
    # Another objective than the busy study has: nothing is known of its memory.
    return pool.pool.submit(f"{stepped.__file__}:in_json", 3, vram=vram, study_name="large")


@pytest.mark.parametrize("vram", [BUDGET_BYTES, "auto"], ids=["as large as the device", "unknown"])
def test_beside_a_study_that_fills_every_gap_it_is_asked_for_after_the_limit(pool, vram):
    ahead = [0.0]
    pool.coordinator._clock = lambda: time.monotonic() + ahead[0]
    pool.submit(lambda trial: 1.0, 60, study_name="busy")
    keep_busy(pool, 2)
    large = submit_large(pool, vram)
    keep_busy(pool, 3)
    assert large.trials == [], "a stale proposal is a worse one"
    ahead[0] = LIMIT_S + 1
    keep_busy(pool, 1)
    assert [trial.state.name for trial in large.trials] == ["WAITING"]
    (job,) = [job for job in pool.pool.queue() if job.study == "large"]
    assert job.passed_over_s >= LIMIT_S, "so that a device is kept free for it with the next take"
    ahead[0] *= 3
    keep_busy(pool, 3)
    assert len(large.trials) == 1, "one is enough"


def test_a_pool_without_workers_makes_nobody_impatient(pool):
    ahead = [0.0]
    pool.coordinator._clock = lambda: time.monotonic() + ahead[0]
    pool.remove_worker()
    large = submit_large(pool, "auto")
    for ahead[0] in (0.0, 500.0, 1_000.0):
        pool.coordinator.turn()
    assert large.trials == []
