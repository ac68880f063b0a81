"""The pool in simulated time: real coordinator, real queue, real ledgers; trials only pass.

Time goes on by what is measured and by what is given. Measured, as it happens: the CPU time of the coordinator, and
what the server works for each call. Given: how long trials last, and how long a message travels. Workers and the
database have as much time as they like: they are many and elsewhere. Whoever hears a hint looks, as in a real pool.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import optuna

import vrampool
from benchmarks.simulation.device import LIFE_S, Device, Running
from benchmarks.simulation.fits import SimulatedFitter
from benchmarks.simulation.listeners import listening
from benchmarks.simulation.outcome import Outcome, Size, Turn
from benchmarks.simulation.server import COORDINATOR, WORKERS, Server
from benchmarks.simulation.study import OBJECTIVE, REQUEST_BYTES, Worksheet, give_past, peak_of
from vrampool.coordinator import Coordinator, earlier
from vrampool.coordinator.loop import IDLE_S
from vrampool.messages import Ticket
from vrampool.queueing import JobQueue, Registry, Taken
from vrampool.queueing.names import Names
from vrampool.settings import load_settings
from vrampool.signing import load_secret
from vrampool.storage import SubmissionState, open_storage
from vrampool_worker.queue_port import QueuePort
from vrampool_worker.worker import LOOK_S

#: A trial reports for the first time after this share of its time; one that needs more than it has ends after this one.
_REPORTS, _GROWN = 0.1, 0.2
_SECRET = "a secret for simulations only, 32 bytes"
_SAMPLERS: dict[str, Callable[[int], Any]] = {
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
}


class SimulatedPool:
    """See the module.

    Args:
        size: What is simulated.
        redis: URL of a real server that is empty and serves nobody else.
        folder: For the study's SQLite file.
    """

    def __init__(self, size: Size, redis: str, folder: Path) -> None:
        self.size = size
        self.now_s = 0.0
        self.outcome = Outcome(size)
        self._learns = size.requests == "learned"
        self._random = random.Random(size.seed)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        name = f"simulated-{uuid.uuid4().hex[:6]}"
        storage = f"sqlite:///{folder / f'{name}.db'}"
        given = {"redis": redis, "storage": storage, "pool": name, "secret": _SECRET, "lease_ttl_s": LIFE_S}
        self._settings = load_settings(given, env={})
        self._server = Server(redis)
        self._signer = load_secret(self._settings, create=False)
        self._storage = open_storage(storage, create_schema=True)
        self._sheet = Worksheet(self._storage, self._random)
        self._devices = [Device(f"gpu-{index}", size.slots) for index in range(size.devices)]
        self._with_room = dict.fromkeys(device.name for device in self._devices)
        self._by_name = {device.name: device for device in self._devices}
        connection = self._server.client(WORKERS)
        self._registries = {device.name: Registry(connection, name) for device in self._devices}
        self._ports = {
            device.name: QueuePort(connection, name, device.name, self._signer, execution_ttl_s=int(LIFE_S))
            for device in self._devices
        }
        self._pool = vrampool.Pool(redis=redis, storage=storage, pool=name, secret=_SECRET)
        self._handle = self._pool.submit(
            OBJECTIVE,
            size.past + size.trials,
            vram="auto" if self._learns else REQUEST_BYTES,
            study_name="simulated",
            sampler=_SAMPLERS[size.sampler](size.seed),
        )
        study_id = self._storage.get_study_id_from_name("simulated")
        give_past(self._storage, study_id, self._handle.id, size.past, self._random, differ=self._learns)
        self._coordinator = self._make_coordinator()
        self._too_large = 0  #: trials that run and need more than they were given
        self._woken = True
        self._turn_ended_s = 0.0
        self._cpu_s = 0.0  #: of the turn in hand
        self._created = 0  #: in the turn in hand
        self._mark_s = 0.0
        self._trips = 0

    def _make_coordinator(self) -> Coordinator:
        assert self._settings.storage is not None
        connection = self._server.client(COORDINATOR)
        storage = open_storage(self._settings.storage, create_schema=False)
        fitter = SimulatedFitter(lambda in_s, call: self._at(self.now_s + in_s, call), self.outcome)
        with mock.patch.object(earlier, "Fitter", lambda: fitter):
            return Coordinator(self._settings, connection, storage, self._signer, clock=lambda: self.now_s)

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """See what the coordinator puts into the queue, and whom it calls: they hear of it while its turn goes on."""
        enqueue, call = JobQueue.enqueue, JobQueue.call

        def noticed(queue: JobQueue, *args: Any, workers: Sequence[str] | None = None, **kwargs: Any) -> list[str]:
            put = enqueue(queue, *args, workers=workers, **kwargs)
            self._pass_turn()
            self._created += len(put)
            if put:
                self._call(workers)
            self._begin_segment()
            return put

        def called(queue: JobQueue, workers: Sequence[str]) -> None:
            call(queue, workers)
            self._pass_turn()
            self.outcome.calls_again += 1
            self._call(workers)
            self._begin_segment()

        # The coordinator's lease ends by the server's clock, and simulating a turn takes longer than the turn.
        names = Names(self._settings.pool)
        lead = self._server.keeping(names.leader)
        ears = listening(self._settings.redis, [(names.events, names.calls(device.name)) for device in self._devices])
        patches = mock.patch.object(JobQueue, "enqueue", noticed), mock.patch.object(JobQueue, "call", called)
        with patches[0], patches[1], self._server.counting(), lead, ears:
            yield

    # ---- the whole -----------------------------------------------------------------------------------

    def run(self, most_s: float = math.inf) -> Outcome:
        """Simulate until all trials have ended, or `most_s` real seconds have passed."""
        self._at(LOOK_S, self._look)
        until_s = time.monotonic() + most_s
        with self._noticing():
            before, cpu_s = self._server.bytes(), self._server.cpu_s()
            self._server.took()
            self._turn()  # nobody is there yet, so it makes nothing: this is the first look
            self._server.trips.clear()
            for device in self._devices:
                self._tell(device)
            self._woken = True
            while self.outcome.ended < self.size.trials and time.monotonic() < until_s:
                due_s = self.now_s if self._woken else self._turn_ended_s + IDLE_S
                if self._events and self._events[0][0] < due_s:
                    self._run_events(self._events[0][0])
                else:
                    self.now_s = max(self.now_s, due_s)
                    self._turn()
            self.outcome.server_cpu_s = self._server.cpu_s() - cpu_s
        outcome = self.outcome
        outcome.elapsed_s = self.now_s
        outcome.trips = dict(self._server.trips)
        outcome.bytes = {role: count - before[role] for role, count in self._server.bytes().items()}
        outcome.server_s = self._server.busy_s
        return outcome

    def close(self) -> None:
        """Let go of everything."""
        self._pool.close()
        self._server.close()
        self._storage.close()

    def trials(self) -> list[optuna.trial.FrozenTrial]:
        """Return the study's trials as they are in the storage."""
        return list(self._handle.study.trials)

    @property
    def finished(self) -> bool:
        """Return whether the submission has ended as it should, once the coordinator has looked again."""
        self._coordinator.turn()
        return self._handle.state == SubmissionState.DONE

    # ---- the coordinator -----------------------------------------------------------------------------

    def _turn(self) -> None:
        started_s, woken, self._woken = self.now_s, self._woken, False
        self._cpu_s, self._created = 0.0, 0
        trials = self.size.past + self.outcome.ended
        self._begin_segment()
        self._coordinator.turn()
        self._pass_turn()
        self._turn_ended_s = self.now_s
        took_s = self.now_s - started_s
        self.outcome.turns.append(Turn(started_s, took_s, self._cpu_s, trials, self._created, woken))

    def _begin_segment(self) -> None:
        self._trips = self._server.trips[COORDINATOR]
        self._mark_s = time.thread_time()

    def _pass_turn(self) -> None:
        """Let time pass by what the coordinator has done since the segment began; others go on meanwhile."""
        cpu_s, took_s = time.thread_time() - self._mark_s, self._server.took()
        trips = self._server.trips[COORDINATOR] - self._trips
        self._cpu_s += cpu_s
        self._run_events(self.now_s + cpu_s)
        if trips:
            self._run_events(self._server.charge(took_s, self.now_s) + trips * self.size.message_s)

    # ---- events --------------------------------------------------------------------------------------

    def _at(self, at_s: float, call: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), call, args))

    def _run_events(self, to_s: float) -> None:
        """Let happen what is due until then."""
        while self._events and self._events[0][0] <= to_s:
            self.now_s, _, call, args = heapq.heappop(self._events)
            call(*args)
        self.now_s = to_s

    def _call(self, workers: Sequence[str] | None) -> None:
        """The coordinator called workers to what waits; None: all, of which those with room ask."""
        self.outcome.hints += 1
        if workers is None:
            self._wake_all()
        else:
            for name in workers:
                if name in self._with_room:
                    self._wake(self._by_name[name])

    def _wake_all(self) -> None:
        for name in self._with_room:
            self._wake(self._by_name[name])

    def _look(self) -> None:
        if len(self.outcome.ran) - self.outcome.ooms - self._too_large == self.size.trials:
            return  # there is nothing left to take, and 1 000 devices would look for it until the last trial ends
        self._wake_all()
        self._at(self.now_s + LOOK_S, self._look)

    def _wake(self, device: Device) -> None:
        if device.asking:
            device.again = True
            return
        device.asking = True
        self._at(self.now_s + self.size.message_s / 2, self._ask, device)

    # ---- workers -------------------------------------------------------------------------------------

    def _ask(self, device: Device) -> None:
        self.outcome.asked.append(self.now_s)
        question = device.question(self.now_s, LIFE_S)
        found = self._ports[device.name].ask(question).found
        answered_s = self._server.charge(self._server.took(), self.now_s) + self.size.message_s / 2
        self._at(answered_s, self._answer, device, question.lease_id, found)

    def _answer(self, device: Device, lease_id: str, found: tuple[Taken, Ticket] | None) -> None:
        device.asking = False
        if found is not None:
            self._start(device, lease_id, *found)
        again, device.again = device.again, False
        if (found is not None or again) and device.name in self._with_room:
            self._wake(device)

    def _start(self, device: Device, lease_id: str, taken: Taken, ticket: Ticket) -> None:
        params = self._sheet.begin(ticket.trial_id, device.name)
        assert params is not None, "nobody else has it"
        peak_bytes = peak_of(params, self._random) if self._learns else None
        running = device.start(taken, ticket, lease_id, self.now_s, peak_bytes)
        assert running is not None, "it was taken because it fits"
        execution_id = self._ports[device.name].begin(taken.job_id)
        assert execution_id is not None
        running.execution_id = execution_id
        self._tell(device)
        self._server.charge(self._server.took(), self.now_s)
        mean, spread = math.log(self.size.lasts_s) - 0.125, 0.5
        lasts_s = self._random.lognormvariate(mean, spread)
        if running.too_large:
            self._too_large += 1
            lasts_s *= _GROWN
        elif self._learns:
            self._at(self.now_s + _REPORTS * lasts_s, self._report, device, running)
        self.outcome.ran.append((self.now_s, self.now_s + lasts_s))
        self._at(self.now_s + lasts_s, self._end, device, running)

    def _report(self, device: Device, running: Running) -> None:
        device.report(running, self.now_s)
        self._tell(device)
        self._server.charge(self._server.took(), self.now_s)
        self._ask_if_room(device)

    def _end(self, device: Device, running: Running) -> None:
        lease_bytes, peak_bytes = running.lease_bytes, running.peak_bytes
        trial_id = running.ticket.trial_id
        self._sheet.tell(trial_id, device.name, device.device_id, lease_bytes=lease_bytes, peak_bytes=peak_bytes)
        device.end(running, self.now_s)
        self.outcome.ended += not running.too_large
        self.outcome.ooms += running.too_large
        self._too_large -= running.too_large
        self._tell(device)
        job_id, lasted_s = running.taken.job_id, self.now_s - running.since_s
        ended = "failed" if running.too_large else "finished"
        self._ports[device.name].finish(job_id, running.execution_id, ended, "", lasted_s)
        self._server.charge(self._server.took(), self.now_s)
        self.outcome.hints += 1
        self._woken = True
        self._ask_if_room(device)

    def _ask_if_room(self, device: Device) -> None:
        if device.name in self._with_room:
            self._wake(device)

    def _tell(self, device: Device) -> None:
        """Tell the pool what changed on a device."""
        if device.has_room(self.now_s):
            self._with_room[device.name] = None
        else:
            self._with_room.pop(device.name, None)
        if self._registries[device.name].beat(device.record(self.now_s), LIFE_S):
            self.outcome.hints += 1
            self._woken = True
