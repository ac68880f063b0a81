"""How long a trial may wait: the bound of docs/waiting.md over random arrivals, with the real ledger and scripts."""

from __future__ import annotations

import random

import pytest
from support.simulated_pool import SimulatedPool, Trial, stream

from vrampool.units import GIB

MEAN_RUN_S = 1_000.0
LIMIT_S = 2_000.0
#: Redis's own clock goes on between two simulated moments; seconds by which an age may differ.
CLOCK_S = 5.0
POOLS = [[24 * GIB], [24 * GIB, 24 * GIB], [24 * GIB, 24 * GIB, 48 * GIB], [68 * GIB] * 4]


def simulate(connection, pool, seed: int, count: int, *, age_limit_s: float = LIMIT_S) -> SimulatedPool:
    cards = POOLS[seed % len(POOLS)]
    simulated = SimulatedPool(connection, pool, cards, age_limit_s=age_limit_s, seed=seed)
    load = random.Random(seed).choice([0.9, 1.2, 1.6])
    simulated.run(stream(seed, cards, count, load=load, mean_run_s=MEAN_RUN_S))
    return simulated


def check(simulated: SimulatedPool) -> int:
    """Assert the promises; return how many trials were earmarked."""
    for trial in simulated.trials.values():
        assert trial.started_s is not None, f"{trial} never started"
        assert trial.started_s <= trial.promised_s + CLOCK_S, f"{trial} was delayed on a device that was kept free"
        if trial.passed_s is not None:
            allowed_s = simulated.longest_wait_allowed(trial)
            assert trial.started_s - trial.passed_s <= allowed_s + CLOCK_S, f"{trial} waited too long"
    assert not simulated.connection.hlen(simulated.names.earmarks), "an earmark outlived its trial"
    return sum(trial.marked_s is not None for trial in simulated.trials.values())


@pytest.mark.parametrize("seed", range(8))
def test_no_trial_waits_longer_than_the_bound(connection, pool, seed):
    check(simulate(connection, pool, seed, 60))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_no_trial_waits_longer_than_the_bound_in_many_pools(connection, pool, seed):
    check(simulate(connection, pool, seed, 250))


def large_among_small(connection, pool, age_limit_s: float) -> tuple[SimulatedPool, Trial]:
    """A card that never runs dry: small trials come in all the time, one large among them."""
    simulated = SimulatedPool(connection, pool, [24 * GIB], age_limit_s=age_limit_s)
    small = [Trial(number, number * 150.0, 4 * GIB, MEAN_RUN_S) for number in range(1, 90)]
    large = Trial(0, 2_000.0, 16 * GIB, MEAN_RUN_S)
    simulated.run([large, *small])
    return simulated, large


def test_a_large_trial_among_small_ones_starts_within_the_bound(connection, pool):
    simulated, large = large_among_small(connection, pool, LIMIT_S)
    check(simulated)
    assert large.marked_s is not None and large.started_s - large.passed_s <= LIMIT_S + MEAN_RUN_S + CLOCK_S


def test_without_a_limit_it_would_wait_until_no_small_one_comes_any_more(connection, pool):
    """What the test above is worth: the same stream starves it."""
    simulated, large = large_among_small(connection, pool, 1e9)
    assert large.marked_s is None
    assert large.started_s >= max(trial.started_s for trial in simulated.trials.values() if trial is not large)


def test_the_device_goes_on_meanwhile_with_what_delays_nobody(connection, pool):
    """16 of 24 GiB are waited for; of three small trials the last two must end. Beside the first there is room."""
    simulated = SimulatedPool(connection, pool, [24 * GIB], age_limit_s=100.0)
    running = [Trial(number, 0.0, 7 * GIB, 1_000.0 * number) for number in (1, 2, 3)]
    large = Trial(4, 10.0, 16 * GIB, 100.0)
    fits_beside, too_much = Trial(5, 300.0, GIB, 9_000.0), Trial(6, 310.0, 3 * GIB, 9_000.0)
    simulated.run([*running, large, fits_beside, too_much])
    assert check(simulated) == 1
    assert fits_beside.started_s == 300.0
    assert large.started_s == 2_000.0, "as if nothing had come"
    assert too_much.started_s >= 2_000.0


@pytest.mark.parametrize("seed", range(3))
def test_pauses_strangers_and_cancelled_trials_leave_no_trial_behind(connection, pool, seed):
    """Devices come and go: an earmark moves on, promises of one that stays hold, and everything runs in the end."""
    rng = random.Random(seed)
    cards = [24 * GIB, 24 * GIB, 48 * GIB]
    simulated = SimulatedPool(connection, pool, cards, age_limit_s=500.0, seed=seed)
    trials = stream(seed, cards, 50, load=1.4, mean_run_s=MEAN_RUN_S)
    end_s = trials[-1].comes_s
    events = []
    for _ in range(6):
        at_s, name = rng.uniform(0, end_s), rng.choice(["w0", "w1"])
        events += [(at_s, "pause", name), (at_s + rng.expovariate(1 / 2_000), "resume", name)]
        events += [(rng.uniform(0, end_s), "cancel", rng.randrange(50))]
    at_s = rng.uniform(0, end_s)
    events += [(at_s, "stranger", ("w2", 30 * GIB)), (at_s + 5_000, "stranger", ("w2", 0))]
    events += [(end_s + 20_000, "resume", name) for name in ("w0", "w1")]
    simulated.run(trials, events)
    for trial in simulated.trials.values():
        assert trial.cancelled or trial.started_s is not None, f"{trial} never started"
    assert not simulated.connection.hlen(simulated.names.earmarks)
