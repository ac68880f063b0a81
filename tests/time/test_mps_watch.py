"""Whether a trial that was given to MPS really is its client is asked of the daemon, and has consequences."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import until

from vrampool.messages import MemorySample, ObjectiveRef
from vrampool.queueing import MpsState
from vrampool_worker.attempts import Stage
from vrampool_worker.devices.mps import MpsError
from vrampool_worker.lanes import Inbox, Timers
from vrampool_worker.ledger.concurrency import BUSY, BUSY_MPS, START, START_MPS, Concurrency
from vrampool_worker.mps_rules import MpsRules
from vrampool_worker.mps_watch import MpsWatch


@dataclass
class PaperDaemon:
    """A daemon on paper."""

    found: set[int] = field(default_factory=set)
    fails: str = ""
    guard_pid: int = 1
    running: bool = True
    swept: int = 0
    closed: bool = False

    def start(self) -> None:
        pass

    def await_start(self) -> None:
        if self.fails:
            raise MpsError(self.fails)

    def clients(self) -> set[int]:
        return self.found

    def client_env(self, limit_bytes: int | None) -> dict[str, str]:
        return {"limit": str(limit_bytes)}

    def sweep(self) -> bool:
        self.swept += 1
        return True

    def close(self) -> None:
        self.closed = True


class Bench:
    """A watch, and what it needs of a loop."""

    def __init__(self, daemon: PaperDaemon) -> None:
        self.daemon = daemon
        self.inbox, self.timers = Inbox(), Timers()
        loop: Any = SimpleNamespace(inbox=self.inbox, timers=self.timers, runner=None)
        rules = MpsRules("on", 1, 2)
        rules.canary_ended("hash:f.py:one", well=True, cap_read_back=True)
        self.concurrency = Concurrency(16)
        self.watch = MpsWatch(loop, daemon, rules, self.concurrency)  # type: ignore[arg-type]
        self.watch.start()

    def await_(self, condition: Any) -> None:
        def look() -> Any:
            self.inbox.run()
            self.timers.run(time.monotonic())
            return condition()

        until(look)

    def trial(self, pid: int) -> Any:
        reference = ObjectiveRef(kind="import", target="f.py:one", source_sha256="hash")
        return SimpleNamespace(
            label=f"digits/{pid}",
            lease_id=str(pid),
            lease_bytes=1024,
            exclusive=False,
            spec=SimpleNamespace(objective=reference),
            child=SimpleNamespace(pid=pid),
            sample=MemorySample(cuda_initialized=True),
            stage=Stage.RUNNING,
            outcome=None,
            mps=False,
            mps_reason="",
            mps_client=None,
        )


@pytest.fixture
def daemon() -> PaperDaemon:
    return PaperDaemon()


def test_a_trial_is_asked_for_once_it_uses_the_card(daemon):
    bench = Bench(daemon)
    bench.await_(lambda: bench.watch.state == "on")
    trial = bench.trial(7)
    assert bench.watch.place(trial) == {"limit": "1024"} and trial.mps
    trial.sample = MemorySample(cuda_initialized=False)
    bench.watch.on_sample(trial)
    assert not bench.watch._checking
    daemon.found = {7}
    trial.sample = MemorySample(cuda_initialized=True)
    bench.watch.on_sample(trial)
    bench.await_(lambda: trial.mps_client is not None)
    assert trial.mps_client is True and bench.watch.state == "on"
    assert (bench.concurrency.busy_bound, bench.concurrency.limit) == (BUSY_MPS, START_MPS)
    bench.watch.close()
    assert daemon.closed


def asked_of_seven_and_told_of_eight(daemon: PaperDaemon) -> tuple[Bench, Any]:
    """A trial that was given to MPS; the daemon, asked for it, will name another process as its only client."""
    bench = Bench(daemon)
    bench.await_(lambda: bench.watch.state == "on")
    trial = bench.trial(7)
    bench.watch.place(trial)
    daemon.found = {8}
    bench.watch.on_sample(trial)
    return bench, trial


def test_when_one_is_no_client_nothing_more_is_given_to_mps(daemon):
    """It would be held by torch's cap alone, and the next one too."""
    bench, trial = asked_of_seven_and_told_of_eight(daemon)
    bench.await_(lambda: trial.mps_client is not None)
    assert trial.mps_client is False
    assert bench.watch.told() == MpsState("off", "digits/7 was given to MPS and runs without it (its clients are [8])")
    assert (bench.concurrency.busy_bound, bench.concurrency.limit) == (BUSY, START)
    following = bench.trial(9)
    assert bench.watch.place(following) == {} and "runs without it" in following.mps_reason


def test_one_that_ended_before_the_daemon_was_asked_says_nothing_of_mps(daemon):
    """Its last sample may be heard when it has left the daemon already."""
    bench, trial = asked_of_seven_and_told_of_eight(daemon)
    trial.outcome = "value"
    bench.await_(lambda: not bench.watch._checking)
    assert trial.mps_client is None and bench.watch.state == "on"


def test_while_the_daemon_starts_trials_run_outside(daemon):
    bench = Bench(daemon)
    trial = bench.trial(7)
    assert bench.watch.place(trial) == {} and trial.mps_reason == "MPS is starting"


def test_a_daemon_that_ends_is_seen_and_what_is_left_of_it_ended(daemon):
    bench = Bench(daemon)
    bench.await_(lambda: bench.watch.state == "on")
    daemon.running = False
    bench.timers.run(1e12)
    assert bench.watch.told() == MpsState("off", "its daemon has ended") and daemon.swept


def test_a_daemon_that_does_not_start_leaves_trials_outside(daemon):
    daemon.fails = "no such card"
    bench = Bench(daemon)
    bench.await_(lambda: bench.watch.told() == MpsState("off", "no such card"))
    assert bench.watch.place(bench.trial(7)) == {}
