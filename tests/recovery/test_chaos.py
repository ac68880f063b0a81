"""Studies whose pool is killed at random: the invariants hold, and each broken rule breaks them.

A failure prints its seed and what was done; ``pytest "tests/recovery/test_chaos.py::...[7]"`` does it again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from recovery.chaos import Chaos, Fault, draw
from recovery.conftest import MakePool
from recovery.hardy import HardyPool

#: Seeds of the slow schedules; those from 200 on have failed once.
SEEDS = [1, 2, 3, 4, 5, 200, 202, 205]


def survives(pool: HardyPool, n_trials: int, faults: Sequence[Fault], seed: int) -> None:
    chaos = Chaos(pool, n_trials, faults, seed)
    try:
        found = chaos.run()
    except BaseException:
        print(chaos)
        raise
    assert found == [], f"{chaos}\n" + "\n".join(found)


def test_a_study_survives_several_deaths_in_a_row(pool: HardyPool):
    """What is quick to recover from, one after another, while a few trials run at once."""
    kinds = ["child", "valkey", "redeliver", "submitter", "worker"]
    faults = [Fault(2 * place + 1, kind, 0.02 * place) for place, kind in enumerate(kinds)]
    survives(pool, 11, faults, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_study_survives_whatever_happens(make_pool: MakePool, seed: int):
    """Sixteen faults of all kinds during thirty trials, on a device that is the pool's own."""
    survives(make_pool(mutants="own_locks", share=False), 30, draw(seed, 16, 30), seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_long_study_survives_all_night(make_pool: MakePool):
    """Forty faults during two hundred trials."""
    pool = make_pool()
    chaos = Chaos(pool, 200, draw(1000, 40, 200), 1000, limit_s=500)
    assert chaos.run() == [], str(chaos)


# ---- the harness itself ----------------------------------------------------------------------------------

#: What breaks the rule that a mutant has broken, and how the invariants say so.
LOSSES = [Fault(2, "redeliver", 0.0), Fault(3, "redeliver", 0.02), Fault(4, "worker", 0.03)]


@pytest.mark.parametrize(
    ("mutant", "words"),
    [
        pytest.param("no_claim_check", "was started 2 times", marks=pytest.mark.slow),
        pytest.param("no_retry", "lost: True) was retried 0 times", marks=pytest.mark.slow),
        ("put_back", "was started 2 times"),
    ],
)
def test_a_pool_that_breaks_a_rule_is_caught(make_pool: MakePool, mutant: str, words: str):
    """A trial that is handed out twice must run once; a lost one must be tried again, as a new one."""
    chaos = Chaos(make_pool(mutants=mutant), 8, LOSSES, step_s=0.1)
    found = chaos.run()
    assert any(words in line for line in found), f"{chaos}\n{found}"


@pytest.mark.slow
def test_a_pool_that_breaks_none_is_not(make_pool: MakePool):
    """The same faults, for comparison."""
    survives(make_pool(), 8, LOSSES, seed=0)
