"""Real pools for tests: Valkey, SQLite, a coordinator, workers and trials, each a process of its own.

::

    def test_something(pool):
        handle = pool.run("objectives.py:one", 3)
        ...
        check_invariants(pool)

A folder's conftest.py makes the fixtures; this module is what they are made of.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from optuna.trial import FrozenTrial, TrialState
from support.waiting import until

import vrampool
from vrampool.messages import AttemptFacts
from vrampool.queueing import History, WorkerRecord
from vrampool.storage import attempt_of, mark_of

#: Quick to notice things, small enough for a laptop, and sharing the CPU with whatever pool the user runs himself.
FAST: dict[str, Any] = {
    "gpu": "cpu",
    "share": True,
    "budget": "1GiB",
    "max_trials": 4,
    "preload": "",
    "lease_ttl_s": 3.0,
    "grace_s": 5.0,
    "stop_ask_s": 1.0,
}
PROBE = Path(__file__).with_name("probe")
#: A variable that every process below a trial has; it tells trials of one pool from all else on the machine.
MARK = "ACCEPTANCE_POOL"
LIMIT_S = 60.0


@dataclass(eq=False)
class LivePool:
    """A pool that runs, and what tests ask of it."""

    pool: vrampool.Pool
    folder: Path
    reserved_bytes: int = 0  #: by the driver, of each device
    vram: str = "200MiB"  #: what trials ask for where a test does not say
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    # ---- submitting ----------------------------------------------------------------------------------

    def submit(self, objective: Any, n_trials: int | None = 1, *, vram: Any = None, **options: Any) -> vrampool.Handle:
        """Submit, with the pool's mark in the trials' environment."""
        vram = self.vram if vram is None else vram
        env = {MARK: self.mark, **options.pop("env", {})}
        return self.pool.submit(objective, n_trials, vram=vram, env=env, **options)

    def run(
        self, objective: Any, n_trials: int | None = 1, *, limit_s: float = LIMIT_S, **options: Any
    ) -> vrampool.Handle:
        """Submit and wait for the end."""
        return self.submit(objective, n_trials, **options).wait(limit_s)

    # ---- looking -------------------------------------------------------------------------------------

    @property
    def state_dir(self) -> Path:
        return self.pool.settings.state_dir

    def devices(self) -> list[WorkerRecord]:
        return self.pool.devices()

    def device(self) -> WorkerRecord:
        """The one device of the pool, as its worker last told; waits for the worker."""
        return until(self.devices, what="a worker")[0]

    def history(self) -> History:
        return History(self.pool.connection, self.pool.settings.pool)

    def pids(self) -> dict[str, int]:
        """Pids of the parents: "coordinator", and each worker's by its device's id."""
        found = {device.device_id: device.pid for device in self.devices()}
        for process in self.processes():
            if "coordinator" in _cmdline(process):
                found["coordinator"] = process.pid
        return found

    def processes(self) -> list[psutil.Process]:
        """Return all processes of a local pool: its host and everything below it."""
        local = self.pool.local
        assert local is not None
        host = psutil.Process(local.record.pid)
        return [host, *host.children(recursive=True)]

    def probe(self, pid: int) -> dict[str, Any]:
        """Ask a parent what it holds: modules, descriptors, threads (`support/probe`)."""
        answer = self.folder / f"{pid}.json"
        answer.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        until(answer.exists, what=f"an answer of process {pid}")
        found = json.loads(answer.read_text())
        assert isinstance(found, dict)
        return found

    def idle(self) -> None:
        """Wait until nothing runs and every lease is back."""
        until(lambda: all(not device.running for device in self.devices()), what="an idle pool", timeout_s=40)

    def clear(self) -> None:
        """End every submission that has not ended."""
        for handle in self.pool.handles():
            if not handle.progress().final:
                handle.cancel("left by a test")
                handle.wait(30)

    def logs(self) -> str:
        """Return the ends of what the pool's processes wrote."""
        parts = []
        for path in sorted((self.folder / "state" / "logs").glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()
            parts.append("\n".join([f"==> {path.name}", *lines[-40:]]))
        return "\n".join(parts)


@dataclass
class PoolMaker:
    """Starts pools, each in a folder of its own, and ends them."""

    folders: Callable[[], Path]
    pools: list[LivePool] = field(default_factory=list)

    def __call__(self, *, env: dict[str, str] | None = None, **settings: Any) -> LivePool:
        """Start a pool owned by this process.

        Args:
            env: Variables that only the pool's processes have.
            settings: Fields of `Settings` that differ from `FAST`.
        """
        folder = self.folders()
        pool = vrampool.Pool(state_dir=folder / "state", **{**FAST, **settings})
        made = LivePool(pool, folder)
        path = os.pathsep.join([str(PROBE), *filter(None, [os.environ.get("PYTHONPATH")])])
        with variables({"PYTHONPATH": path, "VRAMPOOL_TEST_PROBE": str(folder), **(env or {})}):
            pool.__enter__()
        self.pools.append(made)
        living.append(made)
        return made

    def close(self) -> None:
        while self.pools:
            made = self.pools.pop()
            living.remove(made)
            made.pool.close()


#: Pools that run now; when a test fails, the ends of their logs are shown.
living: list[LivePool] = []


class variables:
    """Set environment variables for as long as the block lasts."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._values}
        os.environ.update(self._values)

    def __exit__(self, *error: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# ---- trials ------------------------------------------------------------------------------------------


def facts_of(trial: FrozenTrial) -> AttemptFacts:
    """Return the facts of a trial that a worker has told."""
    facts = attempt_of(trial)
    assert facts is not None, f"trial {trial.number} is {trial.state.name} without facts"
    return facts


def only(handle: vrampool.Handle) -> FrozenTrial:
    """Return a submission's only trial; fail when it was tried again."""
    (trial,) = handle.trials
    return trial


def log_of(trial: FrozenTrial) -> bytes:
    """Return what an attempt wrote to stdout and stderr, as kept."""
    path = facts_of(trial).log
    assert path is not None
    return Path(path).read_bytes()


# ---- invariants --------------------------------------------------------------------------------------


def check_invariants(pool: LivePool) -> None:
    """Assert I1 to I5, as `cases` calls them, once the pool is idle."""
    pool.idle()
    trials = [trial for study in _studies(pool) for trial in study]
    running = [trial.number for trial in trials if trial.state == TrialState.RUNNING]
    assert running == [], "I1: trials are RUNNING in an idle pool"
    waiting = [trial for trial in trials if trial.state == TrialState.WAITING and (mark_of(trial) is not None)]
    queued = {job.job_id for job in pool.pool.queue()}
    jobs = {f"{mark.submission}-{trial.number}" for trial in waiting if (mark := mark_of(trial)) is not None}
    assert jobs <= queued, "I2: trials wait without a job"
    following = pool.run(lambda trial: 1.0)
    assert [trial.state for trial in following.trials] == [TrialState.COMPLETE], "I3: a following trial does not run"
    pool.idle()
    until(lambda: _all_free(pool), what=f"I4: every lease returned: {pool.devices()}")
    until(lambda: not list(_remains(pool, trials)), what=f"I5: an end of {list(_remains(pool, trials))}")


def _studies(pool: LivePool) -> Iterator[list[FrozenTrial]]:
    storage = pool.pool.storage
    for study in storage.get_all_studies():
        yield storage.get_all_trials(study._study_id, deepcopy=False)


def _all_free(pool: LivePool) -> bool:
    # Strangers on a GPU, and on the CPU a host that is full, take from what is free; neither is there in tests.
    return all(
        not device.running and device.free_bytes + pool.reserved_bytes >= device.budget_bytes * 0.95
        for device in pool.devices()
    )


def _remains(pool: LivePool, trials: list[FrozenTrial]) -> Iterator[str]:
    """Yield what is left of finished trials: their own processes, or whatever those started."""
    hosts = {device.pid for device in pool.devices()}
    own = {facts.pid for trial in trials if (facts := attempt_of(trial)) is not None and facts.pid is not None}
    for process in psutil.process_iter():
        try:
            if process.pid in own and set(_ancestors(process)) & hosts:  # pids are given out again
                yield f"the trial's own process {process.pid}"
            elif process.environ().get(MARK) == pool.mark:
                yield f"process {process.pid} that a trial started: {_cmdline(process)}"
        except psutil.Error:
            continue


def _ancestors(process: psutil.Process) -> list[int]:
    return [parent.pid for parent in process.parents()]


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def is_gone(process: psutil.Process) -> bool:
    """True also while whoever got its corpse has not looked at it yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def processes_of(folder: Path) -> list[str]:
    """Return the processes that have this folder in their arguments or variables: of a pool whose state lies there.

    Without root's rights the variables of parents cannot be read; their Valkey, spares and trials tell of them.
    """
    found = []
    for process in psutil.process_iter():
        words = _cmdline(process)
        try:
            words += process.environ().values()
        except psutil.Error:
            pass
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            found.append(f"{process.pid} {' '.join(_cmdline(process))}")
    return found
