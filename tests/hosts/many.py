"""A pool of several hosts: Redis and PostgreSQL on a hub, workers and coordinators on hosts of their own.

The hosts are network namespaces where the kernel makes them; elsewhere all are this machine, and no cable can be
pulled. The tests themselves sit on the hub: sockets in the file system reach its servers whatever the cables do.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa
from hosts.host import COORDINATOR, LIMIT_S, Host
from hosts.hub_valkey import HubValkey
from hosts.network import DATABASE, HUB, REDIS, SUBNET, Network
from optuna.trial import FrozenTrial, TrialState
from recovery.execution_log import ExecutionLog
from recovery.studies import Studies
from support.postgres import PostgresServer
from support.tcp_valkey import free_port
from support.waiting import until

import vrampool
from vrampool.storage import open_storage
from vrampool.storage.pool_storage import PoolStorage

OBJECTIVES = Path(__file__).parents[1] / "recovery" / "objectives.py"
SUBMITTER = OBJECTIVES.with_name("submitter.py")
#: Short leases, so that a death is noticed in about three seconds instead of twelve.
SETTINGS: dict[str, Any] = {
    "gpu": "cpu",
    "share": True,
    "budget": "300MiB",
    "max_trials": 2,
    "preload": "",
    "lease_ttl_s": 1.5,
    "grace_s": 1.5,
    "stop_ask_s": 0.5,
    "sample_s": 0.2,
}


class ManyHosts(Studies):
    """One pool on several hosts.

    Args:
        folder: For everything.
        network: The hosts; None: all are this machine.
        names: Names of hosts.
        max_connections: Of PostgreSQL.
        settings: Fields of `Settings` that differ from `SETTINGS`.
    """

    limit_s = LIMIT_S

    def __init__(
        self,
        folder: Path,
        network: Network | None,
        names: Sequence[str] = ("h1", "h2"),
        *,
        max_connections: int = 60,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.network = network
        self.settings = {**SETTINGS, **settings}
        self.secret = folder / "secret"
        self.secret.write_text("6d" * 32)
        self.secret.chmod(0o600)
        redis_address, database_address = (REDIS, DATABASE) if network is not None else ("127.0.0.1", "127.0.0.1")
        redis_port = 6379 if network is not None else free_port()
        database_port = 5432 if network is not None else free_port()
        enter = network.enter(HUB) if network is not None else None
        self.valkey = HubValkey(folder / "valkey", redis_address, redis_port, enter)
        self.postgres = PostgresServer(
            max_connections=max_connections,
            port=database_port,
            listen=(database_address, SUBNET if network is not None else "127.0.0.1/32"),
            enter=network.enter(HUB, user="nobody") if network is not None else None,
        )
        try:
            self.valkey.start()
            self.postgres.start()
            self._here_url = self.postgres.new_database()
            self.database = str(sa.make_url(self._here_url).database)
            self.redis_url = f"redis://{redis_address}:{redis_port}/0"
            self.storage_url = f"postgresql+psycopg://postgres@{database_address}:{database_port}/{self.database}"
            self.hosts = {name: Host(self, name) for name in names}
            self.pool = self.notebook()
            self.storage: PoolStorage = open_storage(self._here_url, create_schema=True)
            self.begin(folder)
        except BaseException:
            self.close()
            raise

    hosts: dict[str, Host] = {}

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def notebook(self) -> vrampool.Pool:
        """Return the pool as a notebook on the hub sees it."""
        where = {"redis": self.valkey.url, "storage": self._here_url, "state_dir": self.folder / "notebook"}
        return vrampool.Pool(**{**self.settings, **where, "secret_file": self.secret})

    def env(self, host: Host, **settings: Any) -> dict[str, str]:
        """Return the environment of a pool's process on a host."""
        where = {"redis": self.redis_url, "storage": self.storage_url, "state_dir": host.state_dir}
        merged = {**self.settings, **where, "secret_file": self.secret, **settings}
        extra = merged.pop("env", {})
        variables = {
            f"VRAMPOOL_{name.upper()}": "1" if value is True else str(value)
            for name, value in merged.items()
            if value is not None
        }
        return {**os.environ, **variables, **extra}

    def enter(self, name: str) -> Any:
        if self.network is None:
            return None
        return self.network.enter(name, dies_with_us=False, files=self.hosts[name].files)

    def host_name(self, name: str) -> str:
        return os.uname().nodename if self.network is None else name

    # ---- life ----------------------------------------------------------------------------------------

    def begin(self, folder: Path) -> None:
        """A test begins: its trials write into this folder."""
        self.log = ExecutionLog(folder / "executions")
        self.gate = folder / "gate"

    def clear(self) -> None:
        """End what a test has left."""
        for row in self.catalog.submissions():
            if not row.state.final:
                handle = self.pool.attach(row.study_name)
                handle.cancel("left by a test")
                handle.wait(30)

    def close(self) -> None:
        for host in self.hosts.values():
            host.end()
        if hasattr(self, "pool"):
            self.pool.close()
        if hasattr(self, "storage"):
            self.storage.close()
        self.postgres.remove()
        self.valkey.kill()
        if self.network is not None:
            self.network.close()

    # ---- studies -------------------------------------------------------------------------------------

    def submit(self, objective: str, n_trials: int = 1, *, vram: str = "90MiB", **options: Any) -> vrampool.Handle:
        """Submit an objective of `recovery/objectives.py` by its name, from the hub."""
        env = {"EXECUTION_LOG": str(self.log.path), "GATE": str(self.gate), **options.pop("env", {})}
        name = options.pop("study_name", f"{objective}-{uuid.uuid4().hex[:6]}")
        target = objective if ":" in objective else f"{OBJECTIVES}:{objective}"
        return self.pool.submit(target, n_trials, vram=vram, env=env, study_name=name, **options)

    def open_gate(self) -> None:
        self.gate.touch()

    def host_of(self, trial: FrozenTrial) -> str:
        """Return the name of the host that claimed a trial."""
        from vrampool.storage import claimed_by

        worker = claimed_by(trial) or ""
        for host in self.hosts.values():
            if worker.startswith(f"{host.name}-"):
                return host.name
        return worker

    def await_running(self, handle: vrampool.Handle, n_trials: int = 1) -> list[FrozenTrial]:
        def look() -> list[FrozenTrial]:
            found = [trial for trial in self.trials(handle) if trial.state == TrialState.RUNNING]
            return found if len(found) >= n_trials else []

        return until(look, what=f"{n_trials} running trials", timeout_s=LIMIT_S)

    def leader(self) -> str | None:
        """Return the name of the coordinator that leads."""
        from vrampool.queueing import Leadership

        return Leadership(self.pool.connection, self.pool.settings.pool, "nobody").leader()

    def leader_host(self) -> Host | None:
        """Return the host of the coordinator that leads; None while there is none."""
        name = self.leader() or ""
        for host in self.hosts.values():
            if host.runs(COORDINATOR) and name.endswith(f"-{host.process(COORDINATOR).pid}"):
                return host
        return None

    def drop_connections(self) -> None:
        """End every connection to the pool's database."""
        self.postgres.execute(
            "postgres", f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self.database}'"
        )

    def submitter(self, name: str, n_trials: int, seed: int, log: ExecutionLog, step_s: float) -> psutil.Popen:
        """Start a script on the hub that submits a study of `search` and waits for it."""
        where = {"redis": self.valkey.url, "storage": self._here_url, "secret_file": str(self.secret)}
        env = {f"VRAMPOOL_{key.upper()}": value for key, value in where.items()}
        env |= {"EXECUTION_LOG": str(log.path), "STEP_S": str(step_s), "SUBMITTED": f"{log.path}.submitted"}
        words = [str(self.folder / "notebook"), f"{OBJECTIVES}:search", name, str(n_trials), str(seed)]
        with (self.folder / "submitters.log").open("ab") as out:
            return psutil.Popen(
                [sys.executable, str(SUBMITTER), *words], env={**os.environ, **env}, stdout=out, stderr=out
            )

    def logs(self) -> str:
        """The ends of all logs."""
        parts = []
        for host in self.hosts.values():
            for path in sorted(host.state_dir.glob("*.log")):
                parts.append(
                    "\n".join([f"==> {host.name} {path.name}", *path.read_text(errors="replace").splitlines()[-60:]])
                )
        return "\n".join(parts)


@contextmanager
def many_hosts(folder: Path, network: Network | None, *names: str, **options: Any) -> Iterator[ManyHosts]:
    """Servers on a hub, and hosts on which a test starts what it wants; all of it ends with the block."""
    made = ManyHosts(folder, network, names or ("h1", "h2"), **options)
    living.append(made)
    try:
        yield made
    finally:
        living.remove(made)
        made.close()


#: Those that run now; when a test fails, their logs are shown.
living: list[ManyHosts] = []
