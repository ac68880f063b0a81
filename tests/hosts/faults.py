"""Everything that can fail in a pool of several hosts, each as a method that makes it happen once."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from typing import Any

import psutil
from hosts.host import COORDINATOR, WORKER, Host, end
from hosts.many import ManyHosts
from hosts.network import DATABASE, REDIS
from hosts.time_passes import last
from optuna.trial import FrozenTrial
from recovery.processes import below, frozen, kill

from vrampool.queueing.names import Names
from vrampool.storage import mark_of

#: What happens, in words, by its name. Those that need a cable are left out where the kernel makes no hosts.
KINDS = {
    "child": "a trial's process is killed",
    "keeper": "the process above a trial is killed",
    "worker": "a worker is killed",
    "supervisor": "a worker's supervisor is killed",
    "coordinator": "the coordinator that leads is killed",
    "submitter": "the process that waits for a study is killed",
    "host": "a host loses power, and comes up again",
    "freeze": "a worker stands still for longer than its lease",
    "redeliver": "a job is handed out a second time",
    "sigterm": "a worker is told to end, with enough time",
    "preempted": "a worker is told to end, and is killed before its time is up",
    "redis": "Redis stops for a while, and keeps its data",
    "redis_killed": "Redis is killed, and comes back at once",
    "redis_empty": "Redis comes back empty",
    "postgres": "PostgreSQL is restarted",
    "postgres_killed": "PostgreSQL is killed, and recovers",
    "connections": "all connections to PostgreSQL are dropped",
    "cable": "a host's cable is out for longer than a lease",
    "blip": "a host's cable is out for a moment",
    "no_database": "one host does not reach PostgreSQL for a while",
    "no_redis": "one host does not reach Redis for a while",
}
NEED_A_CABLE = ("cable", "blip", "no_database", "no_redis")
#: What takes seconds comes less often.
WEIGHTS = {"host": 0.5, "cable": 0.4, "freeze": 0.4, "no_database": 0.3, "no_redis": 0.4, "sigterm": 0.5, "redis": 0.5}


class Faults:
    """Makes things happen. Each method returns False when it met nobody: call it again in a moment.

    Args:
        pool: The hosts.
        dice: Chooses whom it meets.
        running: Returns the trials that run.
        scripts: Returns the processes that wait for a study.
    """

    def __init__(
        self,
        pool: ManyHosts,
        dice: random.Random,
        *,
        running: Callable[[], Sequence[FrozenTrial]],
        scripts: Callable[[], Sequence[psutil.Popen]],
    ) -> None:
        self.pool = pool
        self._dice = dice
        self._running = running
        self._scripts = scripts

    def happen(self, kind: str) -> bool:
        """Let one of `KINDS` happen."""
        done: bool = getattr(self, f"_{kind}")()
        return done

    # ---- whom it meets -------------------------------------------------------------------------------

    def _pick_host(self) -> Host:
        return self._dice.choice(list(self.pool.hosts.values()))

    def _pick_with(self, role: str) -> Host:
        return self._dice.choice([host for host in self.pool.hosts.values() if host.runs(role)])

    def _pick(self, among: Sequence[Any]) -> Any:
        return self._dice.choice(list(among)) if among else None

    def _workers(self) -> list[psutil.Process]:
        return [worker for host in self.pool.hosts.values() if (worker := host.worker_now()) is not None]

    def _keepers(self) -> list[psutil.Process]:
        return [keeper for worker in self._workers() for keeper in below(worker)]

    # ---- processes -----------------------------------------------------------------------------------

    def _child(self) -> bool:
        return kill(self._pick([child for keeper in self._keepers() for child in below(keeper)]))

    def _keeper(self) -> bool:
        return kill(self._pick(self._keepers()))

    def _worker(self) -> bool:
        return kill(self._pick(self._workers()))

    def _supervisor(self) -> bool:
        host = self._pick_with(WORKER)
        host.kill(WORKER)
        host.again(WORKER)
        return True

    def _coordinator(self) -> bool:
        leader = self.pool.leader_host()
        if leader is None:
            return False
        leader.kill(COORDINATOR)
        leader.again(COORDINATOR)
        return True

    def _submitter(self) -> bool:
        """Nobody starts it again; the study goes on."""
        script = self._pick([script for script in self._scripts() if script.poll() is None])
        if script is None:
            return False
        end(script)
        return True

    def _host(self) -> bool:
        host = self._pick_host()
        for role in host.die():
            host.again(role)
        return True

    def _freeze(self) -> bool:
        worker = self._pick(self._workers())
        if worker is None:
            return False
        with frozen(worker):
            last(self._dice.uniform(1.2, 3.0) * self._ttl_s)
        return True

    def _redeliver(self) -> bool:
        trial = self._pick(self._running())
        mark = None if trial is None else mark_of(trial)
        if trial is None or mark is None:
            return False
        job_id = f"{mark.submission}-{trial.number}"
        names = Names(self.pool.pool.settings.pool)
        with self.pool.pool.connection.pipeline() as pipeline:
            pipeline.delete(names.live(job_id))
            pipeline.lpush(names.waiting, job_id)
            pipeline.execute()
        self.pool.pool._open().events.poke()
        return True

    def _sigterm(self) -> bool:
        host = self._pick_with(WORKER)
        host.stop(WORKER)
        host.again(WORKER)
        return True

    def _preempted(self) -> bool:
        host = self._pick_with(WORKER)
        host.ask(WORKER)
        last(self._dice.uniform(0.1, 0.6))
        host.die(WORKER)
        host.again(WORKER)
        return True

    @property
    def _ttl_s(self) -> float:
        return float(self.pool.settings["lease_ttl_s"])

    # ---- servers -------------------------------------------------------------------------------------

    def _redis(self) -> bool:
        self.pool.valkey.stop()
        last(self._dice.uniform(0.5, 3.0) * self._ttl_s)
        self.pool.valkey.start()
        return True

    def _redis_killed(self) -> bool:
        self.pool.valkey.kill()
        self.pool.valkey.start()
        return True

    def _redis_empty(self) -> bool:
        self.pool.valkey.kill()
        self.pool.valkey.empty()
        self.pool.valkey.start()
        return True

    def _postgres(self) -> bool:
        self.pool.postgres.stop()
        last(self._dice.uniform(0.0, 3.0))
        self.pool.postgres.start()
        return True

    def _postgres_killed(self) -> bool:
        self.pool.postgres.stop(signal.SIGQUIT)
        self.pool.postgres.start()
        return True

    def _connections(self) -> bool:
        self.pool.drop_connections()
        return True

    # ---- cables --------------------------------------------------------------------------------------

    def _cable(self) -> bool:
        self._cut_for(self._dice.uniform(1.5, 4.0) * self._ttl_s)
        return True

    def _blip(self) -> bool:
        self._cut_for(self._dice.uniform(0.1, 0.6) * self._ttl_s)
        return True

    def _cut_for(self, seconds: float) -> None:
        network, name = self.pool.network, self._pick_host().name
        assert network is not None
        network.cut(name)
        try:
            last(seconds)
        finally:
            network.heal(name)

    def _no_database(self) -> bool:
        self._block_for(DATABASE, self._dice.uniform(2.0, 10.0))
        return True

    def _no_redis(self) -> bool:
        self._block_for(REDIS, self._dice.uniform(1.0, 4.0) * self._ttl_s)
        return True

    def _block_for(self, service: str, seconds: float) -> None:
        network, name = self.pool.network, self._pick_host().name
        assert network is not None
        network.block(service, name)
        try:
            last(seconds)
        finally:
            network.unblock(service, name)


def kinds_for(pool: ManyHosts) -> list[str]:
    """Return what can happen to a pool."""
    return [kind for kind in KINDS if pool.network is not None or kind not in NEED_A_CABLE]


def start(pool: ManyHosts) -> None:
    """Start a worker and a coordinator on each of the first two hosts, and a worker on every other."""
    for position, host in enumerate(pool.hosts.values()):
        if position < 2:
            host.coordinator()
        host.worker()
