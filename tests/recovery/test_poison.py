"""A44: a trial that always kills its process, or what is above it, is given up, and harms no other."""

from __future__ import annotations

import pytest
from optuna.trial import TrialState
from recovery.hardy import HardyPool

from vrampool import retries

FAIL = TrialState.FAIL


@pytest.mark.parametrize(
    ("objective", "reason"),
    [
        ("kill_itself", "killed by signal 9 (SIGKILL), 3 attempts"),
        ("kill_the_process_above", "the trial's process went away without an outcome, 3 attempts"),
        pytest.param("kill_its_worker", "went away without a word, 3 attempts", marks=pytest.mark.slow),
    ],
)
def test_a_poison_trial_is_given_up_after_three_attempts_while_others_complete(pool: HardyPool, objective, reason):
    """The count is in the trials, so it holds over workers that die. Those that died with them are not given up."""
    beside = {"EXECUTION_LOG": str(pool.log.path.with_name("beside")), "STEP_S": "0.2"}
    good = pool.submit("search", 4, env=beside)
    poison = pool.submit(objective, 1, max_infra_retries=2)
    attempts = pool.await_end(poison)
    assert [trial.state for trial in attempts] == [FAIL] * 3
    assert pool.log.times("started") == {0: 1, 1: 1, 2: 1}
    assert poison.progress().counts == {"FAIL": 1}
    (root,) = retries.roots(attempts, poison.spec)
    assert root.step.reason.endswith(reason)
    pool.await_end(good)
    counts = good.progress().counts
    assert sum(counts.values()) == 4 and "FAIL" not in counts, counts
    pool.run_one()
