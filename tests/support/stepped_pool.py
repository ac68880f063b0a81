"""A pool in this process whose time passes only when a test says so: hundreds of trials cost seconds.

The coordinator, the queue in a real Valkey, the database and the workers' desks are the real ones. What is left out
is what surrounds them: processes, beats, devices. Objectives are called here, on a proxy trial whose calls go through
JSON as they do through a socket.

Trials take as long as `lasts` says, in a time of the test's own; results are told in the order of their ends. `plain`
runs Optuna alone by the same rules.
"""

from __future__ import annotations

import atexit
import functools
import heapq
import itertools
import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa
from optuna.trial import FrozenTrial, TrialState

import vrampool
from vrampool.coordinator import Coordinator
from vrampool.messages import Outcome, OutcomeKind, Ticket
from vrampool.queueing import Offer, Registry, WorkerRecord, connect
from vrampool.queueing.names import Names
from vrampool.settings import load_settings
from vrampool.signing import load_secret
from vrampool.storage import open_storage, schema
from vrampool_worker.attempts import Attempt
from vrampool_worker.child import outcomes
from vrampool_worker.child.channel import rebuild_error
from vrampool_worker.child.proxy_trial import ProxyTrial, register_with_optuna
from vrampool_worker.desk import NotOpened, Opened, StudyDesk
from vrampool_worker.queue_port import QueuePort
from vrampool_worker.settlement import Place, conclude
from vrampool_worker.trial_server import TrialServer, describe_error

Objective = Callable[[Any], Any]
MIB = 1024**2
BUDGET_BYTES = 1024 * MIB
TRIAL_BYTES = 10 * MIB
SECRET = "a secret for tests only, 32 bytes"
#: A turn in which nothing happens means that the pool waits for something that does not come.
STUCK_TURNS = 50


def stand_in(trial: Any) -> float:
    """What the storage says the objective is; the test's own is called instead."""
    raise AssertionError("never called")


def in_json(call: Callable[[str, dict[str, Any]], Any]) -> Callable[..., Any]:
    """Return a call of a proxy trial whose arguments, answer and error go through JSON."""

    def send(name: str, /, **arguments: Any) -> Any:
        try:
            return json.loads(json.dumps(call(name, json.loads(json.dumps(arguments)))))
        except Exception as error:
            raise rebuild_error(json.loads(json.dumps(describe_error(error)))) from None

    return send


def proxy_of(server: TrialServer) -> ProxyTrial:
    """Return a proxy of the trial that a server serves."""
    register_with_optuna()
    return ProxyTrial(in_json(server.handle), json.loads(json.dumps(server.snapshot())))


@dataclass(order=True)
class _Running:
    ends_at: float
    order: int
    attempt: Attempt = field(compare=False)
    execution_id: str = field(compare=False)


class SteppedWorker:
    """One worker: its desk and its port, and as many trials at once as it has slots."""

    def __init__(self, settings: vrampool.settings.Settings, name: str, slots: int) -> None:
        assert settings.redis is not None
        self.name = name
        self.slots = slots
        self._signer = load_secret(settings, create=False)
        self._connection = connect(settings.redis, role="test")
        self.desk = StudyDesk(settings, self._signer, name, lambda spec: None)
        self.port = QueuePort(self._connection, settings.pool, name, self._signer, execution_ttl_s=600)
        self.registry = Registry(self._connection, settings.pool)
        self.running: list[_Running] = []
        self.desk.connect()

    def tell_registry(self) -> None:
        taken = len(self.running)
        running = tuple(
            vrampool.queueing.RunningTrial("", item.attempt.ticket.number, TRIAL_BYTES, None, 0.0)
            for item in self.running
        )
        record = WorkerRecord(
            name=self.name,
            host="here",
            pid=1,
            device_id=self.name,
            device_name=self.name,
            device_kind="cpu",
            total_bytes=BUDGET_BYTES,
            budget_bytes=BUDGET_BYTES,
            free_bytes=BUDGET_BYTES - taken * TRIAL_BYTES,
            slots=self.slots,
            state="ready",
            running=running,
        )
        self.registry.beat(record, 600.0)

    def take(self) -> tuple[Attempt, Opened] | None:
        """Take and claim a trial; None when there is none, or no slot."""
        while len(self.running) < self.slots:
            lease_id = uuid.uuid4().hex
            offer = Offer(
                worker=self.name,
                lease_id=lease_id,
                free_bytes=BUDGET_BYTES - len(self.running) * TRIAL_BYTES,
                idle=not self.running,
                ttl_ms=600_000,
                device_id=self.name,
                device_kind="cpu",
            )
            found = self.port.take(offer)
            if found is None:
                return None
            taken, ticket = found
            opened = self.desk.open(ticket)
            if isinstance(opened, NotOpened):
                assert not opened.refuse, opened.reason
                self.port.discard(taken.job_id, lease_id)
                continue
            attempt = Attempt(taken.job_id, lease_id, ticket, 0.0, taken.wait_s, lease_bytes=TRIAL_BYTES)
            attempt.spec, attempt.server = opened.spec, opened.server
            attempt.measured_peak_bytes = TRIAL_BYTES // 2
            return attempt, opened
        return None

    def call(self, ticket: Ticket, server: TrialServer, name: str, args: dict[str, Any]) -> Any:
        if name == "stop_study":
            return self.desk.request_stop(ticket.submission_id, f"trial {ticket.number} called study.stop()")
        return self.desk.call(server, name, args)

    def run(self, attempt: Attempt, opened: Opened, objective: Objective) -> None:
        """Call the objective; keep how it ended."""
        call = in_json(lambda name, args: self.call(attempt.ticket, opened.server, name, args))
        trial = ProxyTrial(call, json.loads(json.dumps(opened.snapshot)))
        try:
            outcome = outcomes.from_value(objective(trial), trial.study.n_objectives)
        except Exception as error:
            outcome = outcomes.from_error(error)
        attempt.outcome = outcome

    def settle(self, item: _Running) -> str:
        """Tell how a trial ended. Returns the state told."""
        self.running.remove(item)
        attempt = item.attempt
        can_give = (BUDGET_BYTES,) * 3
        place = Place(self.name, "here", self.name, self.name, "cpu", *can_give, None, BUDGET_BYTES)
        conclusion = conclude(attempt, place)
        assert attempt.spec is not None
        told = self.desk.tell(attempt.ticket, attempt.spec, conclusion)
        good = attempt.outcome is not None and attempt.outcome.kind in (OutcomeKind.VALUE, OutcomeKind.PRUNED)
        self.port.finish(attempt.job_id, item.execution_id, "finished" if good else "failed", "", 0.0)
        return told

    def close(self) -> None:
        self._connection.close()


class SteppedPool:
    """See the module. Build it with `stepped_pool`."""

    def __init__(self, redis: str, storage: str, *, workers: int, slots: int) -> None:
        name = f"pool-{uuid.uuid4().hex[:8]}"
        self.settings = load_settings(
            {"redis": redis, "storage": storage, "pool": name, "secret": SECRET, "lease_ttl_s": 600.0}, env={}
        )
        self.pool = vrampool.Pool(redis=redis, storage=storage, pool=name, secret=SECRET)
        self._order = itertools.count()
        self._objectives: dict[str, Objective] = {}
        self._slots = slots
        self.now = 0.0
        self.most_at_once = 0
        open_storage(storage, create_schema=True).close()
        self.coordinator = self.start_coordinator()
        self.workers: list[SteppedWorker] = []
        self._names = itertools.count()
        for _ in range(workers):
            self.add_worker()

    def add_worker(self) -> None:
        """A worker comes."""
        self.workers.append(SteppedWorker(self.settings, f"w{next(self._names)}", self._slots))

    def remove_worker(self) -> None:
        """The worker that has least to do goes, when it is done."""
        leaving = min(self.workers, key=lambda worker: len(worker.running))
        while leaving.running:
            leaving.settle(leaving.running[0])
        leaving.registry.remove(leaving.name)
        self.workers.remove(leaving)
        leaving.close()

    def start_coordinator(self) -> Coordinator:
        """Start a coordinator; a second one leads once the first has stopped or died."""
        assert self.settings.redis is not None and self.settings.storage is not None
        connection = connect(self.settings.redis, role="test")
        storage = open_storage(self.settings.storage, create_schema=False)
        return Coordinator(self.settings, connection, storage, load_secret(self.settings, create=False))

    def restart_coordinator(self) -> None:
        """The coordinator dies between two looks; another one takes over."""
        connect(self.settings.redis or "", role="test").delete(Names(self.settings.pool).leader)
        self.coordinator = self.start_coordinator()

    def reconcile(self) -> None:
        """Have the coordinator compare what waits with the queue, which it does every other second."""
        self.coordinator._reconciled_at_s = -1e9
        self.coordinator.turn()

    def let_time_out(self, handle: vrampool.Handle) -> None:
        """Make a submission look so old that its time is up."""
        assert handle.spec.timeout_s is not None
        made = sa.update(schema.submissions).where(schema.submissions.c.id == handle.id)
        with self.pool.storage.database.transaction() as session:
            session.execute(made.values(created_at=time.time() - handle.spec.timeout_s - 1))

    def submit(self, objective: Objective, n_trials: int | None = None, **options: Any) -> vrampool.Handle:
        """Submit; nothing runs before `drive`."""
        handle = self.pool.submit(f"{Path(__file__)}:stand_in", n_trials, vram=TRIAL_BYTES, **options)
        self._objectives[handle.id] = objective
        return handle

    def run(
        self, objective: Objective, n_trials: int | None = None, *, lasts: Any = None, **options: Any
    ) -> vrampool.Handle:
        """Submit and drive to the end."""
        handle = self.submit(objective, n_trials, **options)
        self.drive(handle, lasts=lasts)
        return handle

    def drive(self, *handles: vrampool.Handle, lasts: Callable[[FrozenTrial], float] | None = None) -> None:
        """Let time pass until the submissions have ended."""
        idle = 0
        while not all(handle.state.final for handle in handles):
            moved = self.turn(lasts)
            idle = 0 if moved else idle + 1
            assert idle < STUCK_TURNS, f"nothing moves: {handles}, waiting {self.pool.queue()}"

    def turn(self, lasts: Callable[[FrozenTrial], float] | None = None) -> bool:
        """Start what can be started now, then let time pass to the end of the trial that ends next."""
        started = False
        while True:
            for worker in self.workers:
                worker.tell_registry()
            self.coordinator.turn()
            if not self._start(lasts):
                break
            started = True
        return self._end_next() or started

    def _start(self, lasts: Callable[[FrozenTrial], float] | None) -> bool:
        started = False
        for worker in self.workers:
            while self.start_on(worker, lasts) is not None:
                started = True
        self.most_at_once = max(self.most_at_once, sum(len(worker.running) for worker in self.workers))
        return started

    def start_on(
        self, worker: SteppedWorker, lasts: Callable[[FrozenTrial], float] | None = None
    ) -> FrozenTrial | None:
        """Have a worker take, claim and run a trial; its result is told later. None: there was none to take."""
        found = worker.take()
        if found is None:
            return None
        attempt, opened = found
        execution_id = worker.port.begin(attempt.job_id)
        assert execution_id is not None
        worker.run(attempt, opened, self._objectives[attempt.ticket.submission_id])
        trial = self.pool.storage.get_trial(attempt.ticket.trial_id)
        ends_at = self.now + (lasts(trial) if lasts else 1.0)
        heapq.heappush(worker.running, _Running(ends_at, next(self._order), attempt, execution_id))
        return trial  # type: ignore[no-any-return]

    def _end_next(self) -> bool:
        running = [(item, worker) for worker in self.workers for item in worker.running]
        if not running:
            return False
        item, worker = min(running, key=lambda pair: pair[0])
        self.now = max(self.now, item.ends_at)
        worker.settle(item)
        return True

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.pool.close()


@functools.cache
def _ready_database() -> Path:
    """A SQLite file that is set up, to copy: making the tables takes longer than many a test."""
    folder = Path(tempfile.mkdtemp(prefix="vp-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    open_storage(f"sqlite:///{folder / 'ready.db'}", create_schema=True).close()
    return folder / "ready.db"


@contextmanager
def stepped_pool(
    redis: str, folder: Path, *, workers: int = 1, slots: int = 1, storage: str | None = None
) -> Iterator[SteppedPool]:
    """A stepped pool, with a SQLite file of its own in the folder if no other storage is given."""
    if storage is None:
        path = folder / f"{uuid.uuid4().hex[:8]}.db"
        shutil.copy(_ready_database(), path)
        storage = f"sqlite:///{path}"
    made = SteppedPool(redis, storage, workers=workers, slots=slots)
    try:
        yield made
    finally:
        made.close()


def plain(
    study: optuna.Study,
    objective: Objective,
    n_trials: int,
    *,
    at_once: int = 1,
    lasts: Callable[[FrozenTrial], float] | None = None,
) -> None:
    """Run a study with Optuna alone, by the same rules: so many trials at once, told in the order of their ends."""
    running: list[tuple[float, int, optuna.Trial, Outcome]] = []
    asked, now = 0, 0.0
    while running or asked < n_trials:
        while asked < n_trials and len(running) < at_once:
            trial = study.ask()
            asked += 1
            try:
                outcome = outcomes.from_value(objective(trial), len(study.directions))
            except Exception as error:
                outcome = outcomes.from_error(error)
            frozen = study._storage.get_trial(trial._trial_id)
            heapq.heappush(running, (now + (lasts(frozen) if lasts else 1.0), asked, trial, outcome))
        now, _, trial, outcome = heapq.heappop(running)
        if outcome.values is not None:
            study.tell(trial, outcome.values)
        else:
            pruned = outcome.kind == OutcomeKind.PRUNED
            study.tell(trial, state=TrialState.PRUNED if pruned else TrialState.FAIL)
