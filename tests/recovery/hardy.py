"""A local pool whose processes are killed: detached, so that it needs none of ours, and brought up again."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import psutil
from optuna.trial import TrialState
from recovery.execution_log import ExecutionLog
from recovery.processes import Processes, frozen
from recovery.studies import Studies
from support.pools import variables
from support.waiting import until

import vrampool
from vrampool.queueing import Registry, WaitingJob
from vrampool.storage import open_storage
from vrampool.storage.pool_storage import PoolStorage

OBJECTIVES = Path(__file__).with_name("objectives.py")
MUTANTS = Path(__file__).with_name("mutants")
#: Short leases, so that a death is noticed in about three seconds instead of twelve.
SETTINGS: dict[str, Any] = {
    "gpu": "cpu",
    "share": True,
    "budget": "500MiB",
    "max_trials": 4,
    "preload": "",
    "lease_ttl_s": 1.5,
    "grace_s": 1.5,
    "stop_ask_s": 0.5,
    "sample_s": 0.2,
}
LIMIT_S = 60.0


class HardyPool(Studies):
    """One pool in a folder of its own.

    Args:
        folder: For its state.
        mutants: Rules that its processes break, with commas; see `mutants/sitecustomize.py`.
        settings: Fields of `Settings` that differ from `SETTINGS`.
    """

    def __init__(self, folder: Path, *, mutants: str = "", **settings: Any) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.processes = Processes(self.state_dir)
        self._settings = {**SETTINGS, **settings}
        self._env: dict[str, str] = {}
        if mutants:
            path = os.pathsep.join([str(MUTANTS), *filter(None, [os.environ.get("PYTHONPATH")])])
            self._env = {"PYTHONPATH": path, "VRAMPOOL_TEST_MUTANT": mutants, "VRAMPOOL_TEST_FOLDER": str(folder)}
        self._storage: PoolStorage | None = None
        self._second: Any = None
        self.begin(folder)
        self.up()

    # ---- life ----------------------------------------------------------------------------------------

    def begin(self, folder: Path) -> None:
        """A test begins: its trials write into this folder, and logs are read from here on."""
        self.log = ExecutionLog(folder / "executions")
        self.gate = folder / "gate"
        self._read_until = {path.name: path.stat().st_size for path in self._log_files()}

    def up(self) -> None:
        """Start the pool, or attach to it: what `vrampool up` does."""
        self.pool = vrampool.Pool(state_dir=self.state_dir, **self._settings)
        with variables(self._env):
            self.pool._open()
        self.processes.host()

    def clear(self) -> None:
        """End what a test has left."""
        self._end_second()
        for row in self.catalog.submissions():
            if not row.state.final:
                handle = self.pool.attach(row.study_name)
                handle.cancel("left by a test")
                handle.wait(30)

    def down(self) -> None:
        """End it in order and see that no process of it is left, of all that ever were."""
        self.processes.note_all()
        local = self.pool.local
        self.pool.close()
        assert local is not None and local.stop(), "the pool did not end in time"
        until(lambda: not self.processes.remaining(), what=f"an end of {self.processes.remaining()}")

    def destroy(self) -> None:
        """Leave nothing behind, whatever the test has done."""
        try:
            self.processes.note_all()
            self.pool.close()
        finally:
            self.processes.end_all()
            self._end_second()
            if self._storage is not None:
                self._storage.close()

    def second_worker(self) -> psutil.Process:
        """Start one more worker on the same device, beside the supervisor's; it sees no lock of that one."""
        env = {**os.environ, **self.pool.settings.to_env(), **self._env}
        if "VRAMPOOL_TEST_FOLDER" in env:
            env["VRAMPOOL_TEST_FOLDER"] = str(self.log.path.parent)
        with (self.state_dir / "logs" / "second-worker.log").open("ab") as log:
            self._second = psutil.Popen([sys.executable, "-m", "vrampool_worker"], env=env, stdout=log, stderr=log)
        until(lambda: len(self.pool.devices()) == 2, what="two workers", timeout_s=LIMIT_S)
        return self._second

    def _end_second(self) -> None:
        if self._second is not None:
            self._second.kill()
            self._second.wait()
            self._second = None

    # ---- studies -------------------------------------------------------------------------------------

    def submit(self, objective: str, n_trials: int = 1, *, vram: str = "90MiB", **options: Any) -> vrampool.Handle:
        """Submit an objective of this folder by its name."""
        env = {"EXECUTION_LOG": str(self.log.path), "GATE": str(self.gate), **options.pop("env", {})}
        return self.pool.submit(f"{OBJECTIVES}:{objective}", n_trials, vram=vram, env=env, **options)

    def frozen_worker(self) -> frozen:
        """Freeze the worker for as long as the block lasts, once it has told what it can take."""
        until(
            lambda: any(device.state == "ready" and device.free_bytes > 0 for device in self.pool.devices()),
            what="a worker that takes trials",
            timeout_s=LIMIT_S,
        )
        return frozen(self.processes.worker())

    def await_job(self) -> WaitingJob:
        """Wait for a job in the queue while the worker is frozen; it looks alive meanwhile, or no trial is created."""
        (record,) = self.pool.devices()
        registry = Registry(self.pool.connection, self.pool.settings.pool)

        def look() -> list[WaitingJob]:
            registry.beat(record, self.pool.settings.lease_ttl_s)
            return self.pool.queue()

        return until(look, what="a job in the queue", timeout_s=LIMIT_S)[0]

    def await_waiting(self, handle: vrampool.Handle) -> None:
        """Wait for a trial of a submission that waits for room: a phantom of a worker says that it has some."""
        (record,) = until(self.pool.devices, what="a worker")
        registry = Registry(self.pool.connection, self.pool.settings.pool)
        phantom = dataclasses.replace(
            record, name="phantom", device_id="phantom", state="ready", running=(), free_bytes=record.budget_bytes
        )

        def look() -> bool:
            registry.beat(phantom, self.pool.settings.lease_ttl_s)
            return any(job.submission_id == handle.id for job in self.pool.queue())

        until(look, what="a trial that waits", timeout_s=LIMIT_S)
        registry.remove("phantom")

    def open_gate(self) -> None:
        self.gate.touch()

    def run_one(self) -> None:
        """See that the pool still runs trials."""
        log = str(self.log.path.with_name("another"))
        handle = self.submit("one", env={"EXECUTION_LOG": log})
        handle.wait(LIMIT_S)
        assert [trial.state for trial in handle.trials] == [TrialState.COMPLETE]

    # ---- looking -------------------------------------------------------------------------------------

    @property
    def storage(self) -> PoolStorage:
        """The study storage, opened once: it outlives the pool's processes."""
        if self._storage is None:
            url = self.pool.settings.storage
            assert url is not None
            self._storage = open_storage(url, create_schema=True)
        return self._storage

    @property
    def database(self) -> Path:
        """The SQLite file of the study storage."""
        return self.state_dir / "study.db"

    def log_of(self, role: str) -> str:
        """What the processes of a role ("worker", "coordinator", "host") have written since the test began."""
        path = self.state_dir / "logs" / f"{role}.log"
        if not path.exists():
            return ""
        with path.open("rb") as file:
            file.seek(self._read_until.get(path.name, 0))
            return file.read().decode(errors="replace")

    def logs(self) -> str:
        """The ends of all logs."""
        parts = []
        for path in self._log_files():
            parts.append("\n".join([f"==> {path.name}", *self.log_of(path.stem).splitlines()[-60:]]))
        return "\n".join(parts)

    def _log_files(self) -> list[Path]:
        return sorted((self.state_dir / "logs").glob("*.log"))
