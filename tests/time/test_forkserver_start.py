"""While the server that trials are forked from imports, trials wait for it; whatever becomes of it, they run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState
from support.pools import LivePool, facts_of, only
from support.waiting import until

import vrampool
from vrampool_worker.children import forkserver
from vrampool_worker.children.forkserver import ForkServer

#: A module that leaves its process id, and is there once the file `go` is; it computes all the while.
SLOW = """
import os, time
FOLDER = os.environ["SLOW_MODULE"]
open(f"{FOLDER}/importing-{os.getpid()}", "w").close()
while not os.path.exists(f"{FOLDER}/go"):
    time.sleep(0.01)
    sum(range(50_000))
"""


class Slow:
    """A pool whose server imports a module until a test says that it has."""

    def __init__(self, make_pool: Callable[..., LivePool], folder: Path, more: str = "") -> None:
        self.folder = folder
        (folder / "slow_module.py").write_text(SLOW + more)
        environment = {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
        os.environ.update(environment)
        self.live = make_pool(
            start_method="forkserver",
            preload="slow_module",
            env={**environment, "SLOW_MODULE": str(folder)},
            grace_s=0.5,
            lease_ttl_s=1.0,
        )

    def submit(self) -> vrampool.Handle:
        """Submit a trial, and return when the worker holds it and the server imports."""
        handle = self.live.submit(lambda trial: 1.0)
        until(lambda: self.live.device().running, what="a trial that waits")
        until(lambda: handle.progress().running, what="one that is claimed")
        until(self.importing, what="a server that imports")
        return handle

    def importing(self) -> list[int]:
        """Return the processes that have begun to import the module."""
        return [int(path.name.partition("-")[2]) for path in self.folder.glob("importing-*")]

    def go(self) -> None:
        (self.folder / "go").touch()


@pytest.fixture
def slow(make_pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Slow]:
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return lambda more="": Slow(make_pool, tmp_path, more)


def test_a_trial_waits_for_the_server_and_is_forked_from_it(slow):
    """Nothing else imports meanwhile, and the trial stays the worker's for longer than its lease lasts alone."""
    pool = slow()
    handle = pool.submit()
    taken = pool.live.device()
    until(lambda: pool.live.device().beat_at > taken.beat_at + 6 * pool.live.pool.settings.lease_ttl_s)
    assert pool.live.device().running and not handle.progress().final
    assert len(pool.importing()) == 1
    pool.go()
    trial = only(handle.wait(30))
    assert trial.state == TrialState.COMPLETE
    facts = facts_of(trial)
    assert facts.forked and facts.spawn_s > pool.live.pool.settings.lease_ttl_s, "its wait is told"
    assert len(pool.importing()) == 1


def test_when_the_server_dies_the_trial_that_waits_for_it_is_spawned(slow):
    pool = slow()
    handle = pool.submit()
    os.kill(pool.importing()[0], signal.SIGKILL)
    trial = only(handle.wait(30))
    assert trial.state == TrialState.COMPLETE and not facts_of(trial).forked


def test_when_the_server_is_unfit_to_be_forked_the_trial_is_spawned(slow):
    pool = slow("import threading\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n")
    handle = pool.submit()
    pool.go()
    trial = only(handle.wait(30))
    assert trial.state == TrialState.COMPLETE and not facts_of(trial).forked


def test_a_trial_that_is_cancelled_while_it_waits_ends_at_once(slow):
    pool = slow()
    handle = pool.submit()
    handle.cancel("enough")
    handle.wait(forkserver.IMPORT_S - 10)  # and not when it would not have waited any more
    facts = facts_of(only(handle))
    assert (facts.end, facts.forked) == ("cancelled", False) and not (pool.folder / "go").exists()
    pool.live.idle()


def test_a_worker_that_ends_hands_back_a_trial_that_waits(slow):
    pool = slow()
    handle = pool.submit()
    worker = psutil.Process(pool.live.device().pid)
    worker.terminate()
    until(lambda: len(handle.trials) == 2, what="the next attempt")
    first, second = handle.trials
    assert (facts_of(first).end, second.state) == ("preempted", TrialState.WAITING)
    gone, _ = psutil.wait_procs([worker], timeout=20)
    assert gone


def test_a_server_that_takes_long_or_died_before_is_not_waited_for(monkeypatch, tmp_path: Path):
    (tmp_path / "slow_module.py").write_text(SLOW)
    server = ForkServer({**os.environ, "PYTHONPATH": str(tmp_path), "SLOW_MODULE": str(tmp_path)}, ["slow_module"])
    now_s = [100.0]
    monkeypatch.setattr(forkserver.time, "monotonic", lambda: now_s[0])
    server.start()
    try:
        assert server.imports(100.0)
        assert not server.imports(100.0 + forkserver.IMPORT_S)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        assert server.launch("nowhere") is None
        assert not server.imports(100.0) and server.pid is None
        now_s[0] += 60
        server.launch("nowhere")
        assert server.pid is not None and not server.imports(now_s[0]), (
            "started again, and trials are spawned until then"
        )
    finally:
        server.close()
