"""Redis or PostgreSQL stops, restarts, or drops everybody: what was trained is never trained again.

`recovery/test_outages.py` has the same for the servers of one machine: a locked SQLite, a killed or empty Valkey.
"""

from __future__ import annotations

import random
import signal
import threading
import warnings
from pathlib import Path

import optuna
import pytest
from hosts.conftest import MakeHosts
from hosts.lasting import all_ran_once
from hosts.many import OBJECTIVES, ManyHosts
from hosts.time_passes import last
from optuna.trial import TrialState
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
COMPLETE = TrialState.COMPLETE


@pytest.fixture
def pool(make_pool: MakeHosts) -> ManyHosts:
    """A worker with room for two of these trials, and a coordinator."""
    made = make_pool("h1", budget="250MiB")
    made["h1"].coordinator()
    made["h1"].worker()
    made["h1"].await_ready()
    return made


def two_run_and_one_waits(pool: ManyHosts):
    handle = pool.submit("wait_at_gate", 3, vram="100MiB")
    for number in range(2):
        pool.await_note("waiting", number)
    return handle


def test_redis_that_is_away_for_ten_seconds_costs_no_trial(pool: ManyHosts):
    """Longer than three leases. What runs goes on, and ends meanwhile; nobody is taken for dead."""
    handle = two_run_and_one_waits(pool)
    pool.valkey.stop()
    last(5)
    pool.open_gate()
    for number in range(2):
        pool.await_note("ended", number)
    last(5)
    pool.valkey.start()
    all_ran_once(pool, handle, 3)


def test_redis_that_comes_back_empty_after_ten_seconds_costs_no_trial(pool: ManyHosts):
    handle = two_run_and_one_waits(pool)
    pool.valkey.kill()
    pool.valkey.empty()
    last(10)
    pool.valkey.start()
    until(pool.pool.devices, what="a worker that tells of itself again")
    pool.open_gate()
    all_ran_once(pool, handle, 3)


def test_a_database_that_is_away_for_twenty_seconds_while_trials_end_costs_none(pool: ManyHosts):
    """A32. Each result is told when the server is back; the objective ran once."""
    handle = two_run_and_one_waits(pool)
    pool.postgres.stop()
    pool.open_gate()
    for number in range(2):
        pool.await_note("ended", number)
    last(20)
    pool.postgres.start()
    all_ran_once(pool, handle, 3)


def test_connections_that_are_dropped_all_the_time_cost_no_trial_and_no_report(pool: ManyHosts):
    """A32. They are dropped in the middle of claims, reports, tells and births, several times a second."""
    stop, dice = threading.Event(), random.Random(0)

    def drop() -> None:
        while not stop.wait(dice.uniform(0.05, 0.5)):
            pool.drop_connections()

    until(lambda: pool.leader_host() is not None, what="a leader", timeout_s=60)

    dropper = threading.Thread(target=drop)
    handle = pool.submit("search", 12, env={"STEP_S": "0.05"}, max_infra_retries=100)
    dropper.start()
    try:
        until(lambda: pool.log.started >= 8, what="eight trials that began", timeout_s=90)
    finally:
        stop.set()
        dropper.join()
    trials = pool.await_end(handle, limit_s=90)
    assert {trial.state for trial in trials} <= {COMPLETE, TrialState.PRUNED} and len(trials) == 12
    assert pool.log.times("started") == pool.log.times("ended") == dict.fromkeys(range(12), 1)
    assert all(len(trial.intermediate_values) == 4 for trial in trials if trial.state == COMPLETE)


def test_a_server_that_is_killed_and_recovers_costs_no_trial(pool: ManyHosts):
    handle = two_run_and_one_waits(pool)
    pool.postgres.stop(signal.SIGQUIT)
    pool.open_gate()
    pool.postgres.start()
    all_ran_once(pool, handle, 3)


def test_a_notebook_that_waits_outlasts_a_restart_of_both_servers(pool: ManyHosts):
    """It says so once, and runs its callbacks once for each trial."""
    called: list[int] = []
    handle = two_run_and_one_waits(pool)
    handle.callbacks = [lambda study, trial: called.append(trial.number)]
    outcome: list[object] = []

    def wait() -> None:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                handle.wait(90)
                outcome.append([str(one.message) for one in said if "does not answer" in str(one.message)])
            except BaseException as error:
                outcome.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    pool.postgres.stop()
    pool.valkey.stop()
    last(3)
    pool.valkey.start()
    pool.postgres.start()
    pool.open_gate()
    waiting.join(100)
    assert [len(said) if isinstance(said, list) else said for said in outcome] == [1]
    assert sorted(called) == [0, 1, 2]


def test_optimize_outlasts_a_restart_of_the_database_and_mirrors_every_trial(pool: ManyHosts, tmp_path: Path):
    """It stands in for Optuna's own loop: whoever calls it knows of no database."""
    study = optuna.create_study()
    errors: list[BaseException] = []
    env = {"EXECUTION_LOG": str(pool.log.path), "GATE": str(pool.gate)}

    def optimize() -> None:
        try:
            pool.pool.optimize(study, f"{OBJECTIVES}:wait_at_gate", 3, vram="100MiB", env=env)
        except BaseException as error:
            errors.append(error)

    running = threading.Thread(target=optimize)
    running.start()
    pool.await_note("waiting", 1)
    pool.postgres.stop()
    last(2)
    pool.postgres.start()
    pool.open_gate()
    running.join(90)
    assert errors == []
    assert [trial.state for trial in study.trials] == [COMPLETE] * 3
    assert pool.log.times("started") == {0: 1, 1: 1, 2: 1}
