"""Each trial in a process of its own: fresh, alone, with nothing of the pool in it, and nothing left of it."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState
from support.pools import LivePool, PoolMaker, check_invariants, facts_of, only
from support.waiting import until

HERE = Path(__file__).parent
OBJECTIVES = HERE / "objectives.py"


@pytest.mark.parametrize("bundled", [False, True], ids=["imported", "bundled"])
def test_each_trial_runs_in_a_fresh_process_that_no_other_trial_has_used(pool: LivePool, bundled):
    """A05."""
    objective = f"{OBJECTIVES}:tell_process"
    if bundled:
        seen = []

        def objective(trial):
            import multiprocessing

            seen.append(trial.number)
            trial.set_user_attr("pid", os.getpid())
            trial.set_user_attr("seen", len(seen))
            trial.set_user_attr("start", multiprocessing.get_start_method(allow_none=True) or "unset")
            trial.set_user_attr("cmdline", Path("/proc/self/cmdline").read_text().split("\0"))
            return 0.0

    handle = pool.run(objective, 6)
    told = [trial.user_attrs for trial in handle.trials]
    assert len({item["pid"] for item in told}) == 6
    assert [item["seen"] for item in told] == [1] * 6
    assert {item["start"] for item in told} == {"unset"}
    worker = psutil.Process(pool.device().pid)
    for item, trial in zip(told, handle.trials, strict=True):
        assert item["pid"] == facts_of(trial).pid
        assert item["pid"] != worker.pid
        assert "vrampool_worker.child" in item["cmdline"], "started by exec, not a fork of the worker"
        assert item["cmdline"] != [*worker.cmdline(), ""]
    check_invariants(pool)


def test_the_parents_never_import_torch_and_the_coordinator_no_worker(pool: LivePool):
    """A05: neither creates a CUDA context, whatever the trials import."""
    pool.run(f"{OBJECTIVES}:one")
    pids = pool.pids()
    assert set(pids) == {"cpu", "coordinator"}
    for pid in pids.values():
        modules = {name.partition(".")[0] for name in pool.probe(pid)["modules"]}
        assert "optuna" in modules
        assert not modules & {"torch", "numba", "cupy", "jax", "tensorflow"}
    assert "vrampool_worker" not in {name.partition(".")[0] for name in pool.probe(pids["coordinator"])["modules"]}
    check_invariants(pool)


def test_nothing_of_the_pool_reaches_a_trial(pool: LivePool):
    """No Redis or database module, no connection, no settings or secret in environment or arguments."""
    trial = only(pool.run(f"{OBJECTIVES}:tell_surroundings"))
    modules = {name.partition(".")[0] for name in trial.user_attrs["modules"]}
    assert not modules & {"redis", "rq", "sqlalchemy", "sqlite3", "psycopg", "optuna", "pynvml", "torch"}
    settings = pool.pool.settings
    secret = (settings.state_dir / "secret").read_text().strip()
    texts = [*trial.user_attrs["environment"].values(), *trial.user_attrs["argv"]]
    for word in (secret, settings.redis, settings.storage):
        assert not [text for text in texts if word in text]
    assert not [name for name in trial.user_attrs["environment"] if name.startswith("VRAMPOOL_")]
    descriptors = trial.user_attrs["descriptors"]
    assert not [name for name in descriptors if "study.db" in name or "valkey" in name]
    kinds = Counter(name.partition(":")[0] for name in descriptors)
    assert kinds["socket"] == 1, f"the one to its worker: {descriptors}"
    check_invariants(pool)


def test_children_run_side_by_side_while_their_leases_stay_within_the_budget(pool: LivePool, tmp_path):
    """Six trials of 300 MiB on a budget of 1 GiB: three at once, and never four."""
    device = pool.device()
    leased: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            for record in pool.devices():
                leased.append(sum(trial.lease_bytes for trial in record.running))

    watcher = threading.Thread(target=watch)
    watcher.start()
    env = {"MEETING": str(tmp_path), "MEETING_SIZE": "3"}
    try:
        handle = pool.run(f"{OBJECTIVES}:meet", 6, vram="300MiB", env=env)
    finally:
        ended.set()
        watcher.join()
    assert {trial.state for trial in handle.trials} == {TrialState.COMPLETE}
    assert max(trial.user_attrs["most"] for trial in handle.trials) == 3
    spans = [(trial.datetime_start, trial.datetime_complete) for trial in handle.trials]
    together = max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)
    assert together == 3, "as the stamps in the storage say"
    assert leased and max(leased) <= device.budget_bytes
    assert max(leased) >= 2 * 300 * 1024**2, "a worker tells of itself so often that several are seen at once"
    samples = pool.history().samples("cpu")
    for sample in samples:
        assert sum(trial["lease_bytes"] for trial in sample["trials"]) <= device.budget_bytes
    check_invariants(pool)


def test_a_spare_is_used_for_exactly_one_trial(pool: LivePool):
    """It was spawned before the trial came, and after the trial another one waits."""
    pool.idle()
    before = set(spares_of(pool))
    handle = pool.run(f"{OBJECTIVES}:tell_process", 3, max_concurrent_trials=1)
    facts = [facts_of(trial) for trial in handle.trials]
    assert facts[0].spare and facts[0].spawn_s == 0.0
    assert facts[0].pid in before
    assert len({item.pid for item in facts}) == 3
    check_invariants(pool)
    after = set(spares_of(pool))
    assert after
    assert not after & {item.pid for item in facts}


def spares_of(pool: LivePool) -> list[int]:
    """Return the pids of the trial processes that wait: below the worker's keepers, and asleep until a trial comes.

    There are no fewer than the setting says, and more while trials come fast.
    """
    worker = psutil.Process(pool.device().pid)
    wanted = pool.pool.settings.spares

    def found() -> list[int] | None:
        try:
            children = [child for keeper in worker.children() for child in keeper.children()]
            # One that still imports runs, or waits for the disk, however long that takes on a busy machine.
            waiting = all(child.status() == psutil.STATUS_SLEEPING for child in children)
        except psutil.NoSuchProcess:  # one of the trial before has just gone
            return None
        return [child.pid for child in children] if waiting and len(children) >= wanted else None

    return until(found, what="a spare that waits")


@pytest.mark.parametrize("kind", ["imported", "bundled"])
def test_a_trial_may_have_processes_of_its_own(pool: LivePool, kind, tmp_path):
    """A16: `multiprocessing` with spawn and with fork; from `__main__` see `test_travelling`."""
    objective = f"{OBJECTIVES}:start_processes"
    if kind == "bundled":

        def objective(trial):
            import multiprocessing

            with multiprocessing.get_context("spawn").Pool(2) as workers:
                total = sum(workers.map(abs, [1, -4, 9]))
            with multiprocessing.get_context("fork").Pool(2) as workers:
                return float(total + sum(workers.map(abs, [1, -4, 9])))

    trial = only(pool.run(objective))
    assert trial.value == 28.0
    check_invariants(pool)


def test_whatever_a_trial_started_ends_with_it(pool: LivePool, tmp_path):
    """Own sessions and own environments too, however the trial itself ends: returned, raised, timed out."""
    handle = pool.run(f"{OBJECTIVES}:leave_processes", 3, env={"LEFT": str(tmp_path)}, trial_timeout_s=1.5)
    assert [trial.state for trial in handle.trials] == [TrialState.COMPLETE, TrialState.FAIL, TrialState.FAIL]
    left = [int(line) for path in tmp_path.iterdir() for line in path.read_text().split()]
    assert len(left) == 9
    assert [pid for pid in left if psutil.pid_exists(pid)] == []
    check_invariants(pool)


def test_a_spare_with_torch_waits_for_a_trial_while_the_worker_has_none(make_pool: PoolMaker):
    """The module is there before the objective is; no CUDA context is, and the parent never imports it."""
    pytest.importorskip("torch")
    made = make_pool(preload="torch,psutil", budget="2GiB", max_trials=1)
    made.vram = "1GiB"  # the module alone takes 200 MiB
    until(lambda: spares_with(made, "psutil"), what="a spare with torch, and what comes after it", timeout_s=60)
    trial = only(made.run(f"{OBJECTIVES}:tell_torch"))
    assert trial.user_attrs["loaded_before"] is True
    assert trial.user_attrs["cuda_initialized"] is False
    facts = facts_of(trial)
    assert facts.spare and facts.handover_s is not None
    for pid in made.pids().values():
        assert "torch" not in made.probe(pid)["modules"]
    check_invariants(made)


def spares_with(pool: LivePool, name: str) -> bool:
    """True when a spare waits that has mapped a library of this name."""
    worker = psutil.Process(pool.device().pid)
    try:
        children = [child for keeper in worker.children() for child in keeper.children()]
        return any(f"/{name}/" in entry.path for child in children for entry in child.memory_maps())
    except psutil.NoSuchProcess:  # the first one, that imports nothing, has just been let go
        return False
