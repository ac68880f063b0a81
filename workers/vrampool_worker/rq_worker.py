"""The subclass of RQ's worker: so that `rq worker`, `rq info` and RQ's dashboards see a worker of theirs.

RQ runs one job per worker; this one runs as many trials as its device has room for. What it keeps of RQ is what
others see: birth and death, state, heartbeats, executions, commands, suspension, signals.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import time
import uuid
from contextlib import ExitStack
from typing import Any

import redis
from rq.suspension import is_suspended
from rq.worker import BaseWorker, WorkerStatus
from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from vrampool.errors import DeviceLostError, InputError
from vrampool.processes import keep_secrets
from vrampool.queueing import Events, Liveness, Registry, TransientRedisError, WorkerRecord
from vrampool.queueing import renew as renew_executions
from vrampool.queueing.connection import talks_to_redis
from vrampool.settings import Settings, load_settings
from vrampool.signing import Signer, load_secret
from vrampool.units import parse_budget
from vrampool_worker.beat import Beat, Heard, Held
from vrampool_worker.children.launch import clear_scratch
from vrampool_worker.children.supply import Supply
from vrampool_worker.desk import StudyDesk
from vrampool_worker.devices import Device, device_lock, find_devices
from vrampool_worker.environment import child_environment
from vrampool_worker.lanes import Inbox
from vrampool_worker.ledger import Concurrency, Ledger
from vrampool_worker.lineage import marked
from vrampool_worker.listener import Listener
from vrampool_worker.mps_watch import make_mps
from vrampool_worker.queue_port import QueuePort
from vrampool_worker.refusals import why_not
from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")


class GpuWorker(BaseWorker):  # type: ignore[misc, unused-ignore]
    """An RQ worker for one device: `rq worker --worker-class vrampool_worker.GpuWorker vrampool`.

    The queue's name is the pool's. Everything else comes from the settings: `VRAMPOOL_STORAGE`, `VRAMPOOL_GPU`,
    `VRAMPOOL_BUDGET` and so on.
    """

    def __init__(
        self, queues: Any, name: str | None = None, *args: Any, settings: Settings | None = None, **kwargs: Any
    ) -> None:
        self._settings = settings
        self.exit_code = 0
        self._loop: WorkerLoop | None = None
        super().__init__(queues, name or f"{socket.gethostname()}-{uuid.uuid4().hex[:6]}", *args, **kwargs)

    # ---- RQ's interface ------------------------------------------------------------------------------

    def work(
        self,
        burst: bool = False,
        logging_level: str | None = None,
        *_args: Any,
        max_jobs: int | None = None,
        **_kwargs: Any,
    ) -> bool:
        """Run trials until stopped; with `burst` until nothing is left to take. True when any was run.

        Raises:
            InputError: several queues, no storage, no device.
            DeviceConflictError: another worker holds the device.
        """
        keep_secrets()  # `rq worker` knows nothing of it; its argument --url is another matter, see SECURITY.md
        settings = self._read_settings()
        signer = load_secret(settings, create=False)
        with ExitStack() as stack:
            device = stack.enter_context(hold_device(settings))
            self.name = worker_name(device)
            clear_scratch(settings.state_dir)
            stack.enter_context(marked())
            inbox = Inbox()
            stack.callback(inbox.close)
            self._at_end = stack.enter_context(ExitStack())
            loop = self._make_loop(settings, signer, device, inbox)
            self._loop = loop
            loop.stop_when_empty, loop.stop_after_trials = burst, max_jobs
            self.bootstrap(logging_level or "WARNING")
            stack.callback(self.teardown)
            self._install_signal_handlers()
            events = Events(twin(self.connection), settings.pool, signer).subscribe(self.name)
            listener = Listener(loop, stack.enter_context(events), self._beat)
            stack.callback(listener.close)
            listener.start()
            self._beat.start()
            stack.callback(self._leave_registry)
            stack.callback(self._beat.stop)
            _log.info("worker %s: %s, budget %s", self.name, device.name, loop.ledger.budget_bytes)
            loop.run()
            self.exit_code = loop.exit_code
            if loop.exit_code == DeviceLostError.exit_code:
                _log.error("the device is lost; the worker ends with code %s", loop.exit_code)
            return loop.finished_trials > 0

    def teardown(self) -> None:
        """Leave RQ's books. Without Redis they close by themselves, as they do for a worker that was killed."""
        try:
            super().teardown()  # type: ignore[no-untyped-call, unused-ignore]
        except redis.RedisError as error:
            _log.warning("RQ was not told of the end: %s", error)

    def _leave_registry(self) -> None:
        with contextlib.suppress(TransientRedisError):
            self._registry.remove(self.name)

    def _read_settings(self) -> Settings:
        names = self.queue_names()
        if len(names) != 1:
            raise InputError(f"a worker serves one pool, so give one queue, not {len(names)}: {', '.join(names)}")
        settings = (self._settings or load_settings()).with_changes(pool=names[0])
        if settings.storage is None:
            raise InputError("a worker needs the study storage: set VRAMPOOL_STORAGE to its URL")
        return settings

    def _make_loop(self, settings: Settings, signer: Signer, device: Device, inbox: Inbox) -> WorkerLoop:
        slots = settings.max_trials or device.default_slots
        # On the CPU there are as many trials as cores; on a card nobody can know beforehand.
        finds = device.kind == "cuda" and settings.concurrency == "auto"
        concurrency = Concurrency(slots) if finds else None
        ledger = Ledger(
            device.id,
            device.total_bytes,
            parse_budget(settings.budget, device.total_bytes),
            slots,
            concurrency=concurrency,
            label=device.label,
            kind=device.kind,
            shared=settings.share,
            give_back_s=settings.give_back_s,
        )
        desk = StudyDesk(settings, signer, self.name, lambda spec: why_not(spec, settings))
        port = QueuePort(
            twin(self.connection), settings.pool, self.name, signer, execution_ttl_s=self.get_heartbeat_ttl(None)
        )
        told = str(self.connection.connection_pool.connection_kwargs.get("password") or "")
        environment = child_environment(os.environ, device, settings, secrets=[told])
        supply = Supply(environment, settings)
        self._at_end.callback(supply.close)
        supply.start()
        loop = WorkerLoop(
            settings,
            name=self.name,
            device=device,
            ledger=ledger,
            desk=desk,
            port=port,
            inbox=inbox,
            tell_beat=lambda held: self._beat.tell(held),
            forget_job=lambda job_id: self._beat.forget(job_id),
            supply=supply,
        )
        loop.mps = make_mps(loop, settings, environment, concurrency)
        connection = twin(self.connection)
        self._registry = Registry(connection, settings.pool)
        pulse = Pulse(self, connection, settings)
        loop.chronicle.calibration.begin()
        first = loop.chronicle.held()
        assert first is not None
        self._beat = Beat(
            pulse,
            first,
            interval_s=settings.beat_s,
            ttl_s=settings.lease_ttl_s,
            on_heard=lambda heard: inbox.post(lambda: loop.on_heard(heard)),
        )
        return loop

    def execute_job(self, job: Any, queue: Any) -> None:
        """RQ's own loop is not used: see `work`."""
        raise NotImplementedError("this worker takes trials by their memory, with `work`")

    def get_heartbeat_ttl(self, job: Any, working_time: float = 0.0) -> int:
        """Return for how long RQ takes an execution for alive: it is renewed with every beat."""
        return int(self._beat_settings().lease_ttl_s * 5) + 10

    def _beat_settings(self) -> Settings:
        return self._settings or load_settings()

    def _install_signal_handlers(self) -> None:
        signal.signal(signal.SIGINT, self.request_stop)
        signal.signal(signal.SIGTERM, self.request_stop)

    def request_stop(self, signum: int, frame: Any) -> None:
        """Drain; a second signal hurries. Never raises from the handler: a pipeline may be in the middle."""
        if self._loop is None:  # it has not begun to work
            super().request_stop(signum, frame)  # type: ignore[no-untyped-call, unused-ignore]
            return
        self._loop.inbox.post(self._loop.request_stop)

    def subscribe(self) -> None:
        """Listen to RQ's commands."""
        pubsub: Any = twin(self.connection).pubsub()  # type: ignore[no-untyped-call]
        pubsub.subscribe(**{self.pubsub_channel_name: self.handle_payload})
        self.pubsub = pubsub
        self.pubsub_thread = pubsub.run_in_thread(
            sleep_time=2.0, daemon=True, exception_handler=self._pubsub_exception_handler
        )

    def handle_payload(self, message: Any) -> None:
        """Take RQ's commands: shutdown, stop-job, stop-execution, kill-horse. Runs in the subscriber's thread."""
        try:
            payload = json.loads(message["data"])
            command, job_id = payload.get("command"), payload.get("job_id")
        except (ValueError, TypeError, AttributeError):
            _log.warning("a command that is not JSON was ignored")
            return
        loop = self._loop
        if loop is None:
            super().handle_payload(message)  # type: ignore[no-untyped-call, unused-ignore]
        elif command == "shutdown":
            loop.inbox.post(loop.request_stop)
        elif command in ("stop-job", "stop-execution", "kill-horse"):
            everything = command == "kill-horse"
            loop.inbox.post(lambda: loop.stop_jobs(None if everything else str(job_id)))


class Pulse:
    """One beat with Redis: liveness, RQ's executions and heartbeat, the worker's record. See `beat.Pulse`."""

    def __init__(self, worker: GpuWorker, connection: redis.Redis, settings: Settings) -> None:
        self._worker = worker
        self._connection = connection
        self._settings = settings
        self._liveness = Liveness(connection, settings.pool)
        self._registry = Registry(connection, settings.pool)
        self._beats = 0
        self._shown: str | None = None

    @talks_to_redis  # RQ's own calls among them raise Redis's own faults
    def beat(self, held: Held) -> Heard:
        """Beat. Round trips: 3, and 2 more while trials run."""
        settings, name = self._settings, self._worker.name
        lost: list[str] = []
        if held.jobs:
            lost = self._liveness.renew(dict.fromkeys(held.jobs, name), int(settings.lease_ttl_s * 1000))
        if held.executions:
            ttl = self._worker.get_heartbeat_ttl(None)
            renew_executions(self._connection, settings.pool, name, held.executions, ttl)
        self.news(held)
        self._rq_heartbeat(held.record)
        largest = None
        if self._beats % 5 == 0:
            largest = self._registry.largest_budget(time.time())
        self._beats += 1
        suspended = bool(is_suspended(self._connection)) if self._beats % 2 else self._was_suspended
        self._was_suspended = suspended
        return Heard(tuple(lost), largest, suspended)

    def news(self, held: Held) -> None:
        """Tell what the worker can take now. Round trips: 1."""
        self._registry.beat(dataclasses.replace(held.record, beat_at=time.time()), self._settings.lease_ttl_s)

    _was_suspended = False

    def _rq_heartbeat(self, record: WorkerRecord) -> None:
        worker = self._worker
        state = WorkerStatus.BUSY if record.running else WorkerStatus.IDLE
        with self._connection.pipeline() as pipeline:
            worker.heartbeat(int(self._settings.lease_ttl_s * 5) + 60, pipeline=pipeline)
            worker.set_state(state, pipeline=pipeline)
            created = pipeline.execute()[0]
        if created == 1:  # Redis came back empty: be seen again, with everything
            with self._connection.pipeline() as pipeline:
                pipeline.hset(worker.key, mapping=worker.serialize())
                pipeline.sadd(worker.redis_workers_keys, worker.key)
                for queue in worker.queue_names():
                    pipeline.sadd(WORKERS_BY_QUEUE_KEY % queue, worker.key)
                pipeline.execute()


def twin(connection: redis.Redis) -> redis.Redis:
    """Return a second client to the same server with connections of its own; RQ changes the time-outs of its own."""
    pool = connection.connection_pool
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if name != "socket_timeout"}
    return redis.Redis(
        connection_pool=redis.ConnectionPool(connection_class=pool.connection_class, socket_timeout=4.0, **kwargs)
    )


def worker_name(device: Device) -> str:
    """Return a name that no other worker ever had: after SIGKILL a fixed one would be refused for minutes."""
    short = device.id.removeprefix("GPU-")[:8]
    return f"{socket.gethostname()}-{short}-{uuid.uuid4().hex[:6]}"


class hold_device:
    """Find the worker's one device and hold its lock for as long as the block lasts.

    Several devices may be visible (`rq worker` on a host with four): the first that no other worker holds is taken.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack = ExitStack()

    def __enter__(self) -> Device:
        devices = find_devices(self._settings, os.environ)
        for position, device in enumerate(devices):
            try:
                self._stack.enter_context(device_lock(device.id, self._settings.share))
            except Exception:
                if position == len(devices) - 1:
                    raise
                continue
            return device
        raise InputError("no device was found")

    def __exit__(self, *error: object) -> None:
        self._stack.close()
