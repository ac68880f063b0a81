"""The same worker, RQ's way: `rq worker`, `rq info` and RQ's commands on a pool with a Redis of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from optuna.trial import TrialState
from rq.command import send_stop_job_command
from rq.job import Job, JobStatus
from rq.suspension import resume, suspend
from rq.worker import Worker
from support import pools
from support.pools import FAST, LivePool, check_invariants, facts_of, only
from support.waiting import until

import vrampool
from vrampool.local.embedded import EmbeddedValkey
from vrampool.messages import EndKind

OBJECTIVES = Path(__file__).with_name("objectives.py")
RQ = Path(sys.executable).with_name("rq")


@dataclass
class OpenPool:
    """A pool whose parts are started one by one, as on several machines."""

    folder: Path
    redis: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def settings(self) -> dict:
        storage = f"sqlite:///{self.folder}/studies.db"
        return {**FAST, "redis": self.redis, "storage": storage, "state_dir": self.folder / "state", "pool": "by-hand"}

    @property
    def env(self) -> dict[str, str]:
        variables = {f"VRAMPOOL_{name.upper()}": str(value) for name, value in self.settings.items()}
        return {**os.environ, **variables, "VRAMPOOL_SHARE": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    def start(self, *command: str | Path) -> subprocess.Popen[bytes]:
        logs = self.folder / "state" / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / f"{len(list(logs.glob('*.log')))}-{Path(command[0]).name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(word) for word in command], env=self.env, stdout=out, stderr=out, process_group=0, cwd=self.folder
            )
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
            process.wait(20)


@pytest.fixture(scope="module")
def parts_by_hand(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    """A coordinator started by `vrampool coordinator`, a worker by `rq worker`."""
    folder = tmp_path_factory.mktemp("by-hand")
    secret = folder / "state" / "secret"
    secret.parent.mkdir()
    secret.write_text("5" * 64)
    secret.chmod(0o600)
    with EmbeddedValkey(folder / "valkey") as server:
        parts = OpenPool(folder, server.url)
        try:
            parts.start(sys.executable, "-m", "vrampool", "coordinator")
            parts.start(RQ, "worker", "--worker-class", "vrampool_worker.GpuWorker", "--url", server.url, "by-hand")
            pool = vrampool.Pool(**parts.settings)
            made = LivePool(pool, folder)
            pools.living.append(made)
            until(made.devices, what="a worker")
            yield made
            pools.living.remove(made)
            pool.close()
        finally:
            parts.stop()
    assert [process.returncode for process in parts.processes] == [0, 0]


@pytest.fixture
def by_hand(parts_by_hand: LivePool) -> Iterator[LivePool]:
    yield parts_by_hand
    parts_by_hand.clear()


def test_a_worker_started_rqs_way_runs_trials(by_hand: LivePool):
    handle = by_hand.run(f"{OBJECTIVES}:tell_process", 4)
    assert {trial.state for trial in handle.trials} == {TrialState.COMPLETE}
    assert len({facts_of(trial).pid for trial in handle.trials}) == 4
    check_invariants(by_hand)


def test_rq_info_shows_the_worker_and_the_queue(by_hand: LivePool, tmp_path):
    """Idle, then busy."""
    url = by_hand.pool.settings.redis
    assert url is not None
    gate = tmp_path / "gate"
    handle = by_hand.submit(f"{OBJECTIVES}:wait_for_file", env={"GATE": str(gate)})
    until(lambda: handle.progress().running, what="a running trial")

    def info() -> str:
        done = subprocess.run([RQ, "info", "--raw", "--url", url], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = until(lambda: text if " busy " in (text := info()) else "", what="a busy worker")
    assert "queue by-hand 0" in shown
    assert by_hand.device().name in shown
    assert "busy by-hand" in shown
    gate.touch()
    handle.wait(30)
    until(lambda: " idle " in info(), what="an idle worker")
    check_invariants(by_hand)


def test_rqs_books_on_a_trial_are_those_of_a_job_that_ended(by_hand: LivePool):
    """A finished one, a failed one: with the worker's name, and no job is left started."""
    connection = by_hand.pool.connection
    good = by_hand.run(f"{OBJECTIVES}:one")
    bad = by_hand.run(f"{OBJECTIVES}:raise_value_error")

    def job(handle: vrampool.Handle) -> Job:
        return Job.fetch(f"{handle.id}-0", connection=connection)

    until(lambda: job(good).get_status() == JobStatus.FINISHED, what="a finished job")
    until(lambda: job(bad).get_status() == JobStatus.FAILED, what="a failed job")
    (worker,) = Worker.all(connection=connection)
    assert job(good).worker_name == worker.name == by_hand.device().name
    assert worker.get_current_job_id() is None
    check_invariants(by_hand)


def test_rqs_stop_command_ends_one_trial(by_hand: LivePool, tmp_path):
    handle = by_hand.submit(f"{OBJECTIVES}:wait_for_file", env={"GATE": str(tmp_path / "gate")})
    until(lambda: handle.progress().running, what="a running trial")
    job_id = f"{handle.id}-0"
    connection = by_hand.pool.connection
    until(lambda: Job.fetch(job_id, connection=connection).get_status() == JobStatus.STARTED, what="RQ's start")
    send_stop_job_command(connection, job_id)
    handle_ended = until(lambda: handle.trials[0].state.is_finished(), what="the end of the trial")
    assert handle_ended
    assert facts_of(handle.trials[0]).end == EndKind.CANCELLED
    handle.cancel()
    handle.wait(30)
    check_invariants(by_hand)


def test_rq_suspend_pauses_the_worker_until_rq_resume(by_hand: LivePool):
    connection = by_hand.pool.connection
    suspend(connection)
    try:
        until(lambda: by_hand.device().state == "paused", what="a paused worker")
        assert "rq suspend" in by_hand.device().reason
        handle = by_hand.submit(f"{OBJECTIVES}:one")
        until(lambda: handle.without_worker(), what="a word of why it waits")
        assert "paused" in (handle.without_worker() or "")
        assert handle.progress().finished == 0
    finally:
        resume(connection)
    assert only(handle.wait(30)).state == TrialState.COMPLETE
    check_invariants(by_hand)


def test_a_worker_needs_one_queue_a_storage_and_a_pool(by_hand: LivePool, tmp_path):
    """`rq worker` says so in one line, as far as it is ours to say."""
    url = by_hand.pool.settings.redis
    command = [RQ, "worker", "--worker-class", "vrampool_worker.GpuWorker", "--url", url]
    env = {**os.environ, "VRAMPOOL_STATE_DIR": str(by_hand.state_dir), "VRAMPOOL_SHARE": "1", "VRAMPOOL_GPU": "cpu"}
    two = subprocess.run([*command, "one", "two"], env=env, capture_output=True, text=True, timeout=60)
    assert two.returncode != 0
    assert "one queue" in two.stdout + two.stderr
    none = subprocess.run([*command, "by-hand"], env=env, capture_output=True, text=True, timeout=60)
    assert none.returncode != 0
    assert "VRAMPOOL_STORAGE" in none.stdout + none.stderr


def test_a_burst_worker_ends_when_nothing_is_left(by_hand: LivePool, tmp_path):
    """`rq worker --burst`, and `vrampool worker` beside it: both serve the same pool and end in order."""
    parts = OpenPool(by_hand.folder, str(by_hand.pool.settings.redis))
    handle = by_hand.submit(f"{OBJECTIVES}:one", 4)
    burst = parts.start(
        RQ, "worker", "--burst", "--worker-class", "vrampool_worker.GpuWorker", "--url", parts.redis, "by-hand"
    )
    assert burst.wait(40) == 0
    handle.wait(30)
    second = parts.start(sys.executable, "-m", "vrampool", "worker", "--gpu", "cpu")
    until(lambda: len(by_hand.devices()) == 2, what="a second worker")
    names = {facts_of(trial).worker for trial in by_hand.run(f"{OBJECTIVES}:draw", 8).trials}
    assert names <= {device.name for device in by_hand.devices()}
    second.send_signal(signal.SIGTERM)
    assert second.wait(20) == 0
    until(lambda: len(by_hand.devices()) == 1, what="its leave")
    check_invariants(by_hand)


def test_two_coordinators_may_run_and_one_leads(by_hand: LivePool):
    parts = OpenPool(by_hand.folder, str(by_hand.pool.settings.redis))

    def coordinators() -> int:
        """Count those that listen to events: the last thing that one does before its loop."""
        clients = by_hand.pool.connection.client_list()
        return sum("coordinator" in client["name"] and client["sub"] != "0" for client in clients)

    second = parts.start(sys.executable, "-m", "vrampool", "coordinator")
    try:
        until(lambda: coordinators() == 2, what="a second coordinator")
        handle = by_hand.run(f"{OBJECTIVES}:draw", 6)
        assert [trial.number for trial in handle.trials] == list(range(6))
        assert {trial.state for trial in handle.trials} == {TrialState.COMPLETE}
    finally:
        second.terminate()
    assert second.wait(20) == 0
    check_invariants(by_hand)
