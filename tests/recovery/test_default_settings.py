"""How long it takes with the settings that everybody has."""

from __future__ import annotations

import time

import pytest
from optuna.trial import TrialState
from recovery.conftest import MakePool

from vrampool.settings import Settings


@pytest.mark.slow
def test_a_dead_worker_s_trial_runs_again_within_fifteen_seconds(make_pool: MakePool):
    """From the death to the objective's first line in the new worker."""
    defaults = Settings()
    pool = make_pool(lease_ttl_s=defaults.lease_ttl_s, grace_s=defaults.grace_s, sample_s=defaults.sample_s)
    handle = pool.submit("wait_at_gate")
    pool.await_note("waiting", 0)
    died_s = time.monotonic()
    pool.processes.kill("worker")
    pool.await_note("started", 1)
    took_s = time.monotonic() - died_s
    pool.open_gate()
    assert [trial.state for trial in pool.await_end(handle)] == [TrialState.FAIL, TrialState.COMPLETE]
    assert took_s < 15
