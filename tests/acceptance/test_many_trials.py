"""After many trials a worker holds what it held after a few: descriptors, threads, processes, files."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState
from support.pools import LivePool, PoolMaker, check_invariants
from support.waiting import until

OBJECTIVES = Path(__file__).with_name("objectives.py")
#: Less than one more child holds: else some wait for the next burst, and what waits cannot be told from what was left.
NO_MORE_SPARES = "1MiB"


def zombies_below(worker: psutil.Process) -> list[psutil.Process]:
    """Return the ended processes below the worker that nobody has reaped."""
    found = []
    for child in worker.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def held(pool: LivePool) -> dict[str, int]:
    """Count what the worker holds while it is idle and its spare waits."""
    pool.idle()
    pid = pool.device().pid
    wanted = pool.pool.settings.spares
    worker = psutil.Process(pid)

    def waiting() -> int:
        return sum(len(keeper.children()) for keeper in worker.children())

    # One more than that is let go after half a minute.
    until(lambda: waiting() == wanted, what="only a spare", timeout_s=60)
    # One that has just ended is a zombie until its parent's next turn; one that stays is what this looks for.
    until(lambda: not zombies_below(worker), what="no zombies below the worker")
    found = pool.probe(pid)
    return {
        "descriptors": found["descriptors"],
        "threads": found["threads"],
        "processes": len(worker.children(recursive=True)),
        "scratch": len(list((pool.state_dir / "scratch").glob("*"))),
    }


def run_mixed(pool: LivePool, n_trials: int, *, limit_s: float) -> None:
    """Run trials of which every eighth raises and every eighth is killed."""
    handle = pool.run(f"{OBJECTIVES}:mixed_ends", n_trials, max_infra_retries=0, limit_s=limit_s)
    states = [trial.state for trial in handle.trials]
    assert len(states) == n_trials
    wrong = [number for number in range(n_trials) if number % 8 in (3, 7)]
    assert [number for number, state in enumerate(states) if state == TrialState.FAIL] == wrong
    assert states.count(TrialState.COMPLETE) == n_trials - len(wrong)


def test_sixty_trials_leave_nothing_behind_in_the_worker(make_pool: PoolMaker):
    """A48, small: all that is held after sixty more is what was held before."""
    pool = make_pool(spare_memory=NO_MORE_SPARES)
    run_mixed(pool, 10, limit_s=60)
    before = held(pool)
    run_mixed(pool, 60, limit_s=90)
    after = held(pool)
    for name, count in before.items():
        assert abs(after[name] - count) <= 3, (before, after)
    check_invariants(pool)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_hundred_trials_fit_into_256_descriptors(make_pool: PoolMaker):
    """A48: of the worker's, and of every other process of the pool."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        made = make_pool(spare_memory=NO_MORE_SPARES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    run_mixed(made, 10, limit_s=60)
    before = held(made)
    run_mixed(made, 800, limit_s=800)
    after = held(made)
    for name, count in before.items():
        assert abs(after[name] - count) <= 5, (before, after)
    check_invariants(made)
