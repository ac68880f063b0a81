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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import optuna

import vrampool
from benchmarks.simulation.device import LIFE_S, Device, Running
from benchmarks.simulation.server import COORDINATOR, WORKERS, Server
from benchmarks.simulation.study import OBJECTIVE, REQUEST_BYTES, Worksheet, give_past
from vrampool.coordinator import Coordinator
from vrampool.coordinator.loop import IDLE_S
from vrampool.messages import Ticket
from vrampool.queueing import JobQueue, Registry, Taken
from vrampool.queueing.names import Names
from vrampool.settings import load_settings
from vrampool.signing import load_secret
from vrampool.storage import SubmissionState, open_storage
from vrampool_worker.queue_port import QueuePort
from vrampool_worker.worker import LOOK_S

_SECRET = "a secret for simulations only, 32 bytes"
_SAMPLERS: dict[str, Callable[[int], Any]] = {
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
}


@dataclass(frozen=True)
class Size:
    """What is simulated."""

    devices: int = 100
    trials: int = 1000  #: to run
    past: int = 0  #: trials that the study has already, of the same submission
    lasts_s: float = 60.0  #: mean of a log-normal distribution
    slots: int = 1  #: trials at once on a device
    sampler: str = "random"
    message_s: float = 0.0002  #: how long a message and its answer travel
    seed: int = 1

    @property
    def wanted_per_s(self) -> float:
        """Trials a second that the devices could run if there was always one waiting."""
        return self.devices * self.slots / self.lasts_s


@dataclass(frozen=True)
class Turn:
    """One turn of the coordinator."""

    at_s: float  #: simulated, its start
    took_s: float  #: simulated
    cpu_s: float
    trials: int  #: in the study at its start
    created: int
    woken: bool  #: somebody had said that something changed; else it looked because it looks every second


@dataclass
class Outcome:
    """What was seen."""

    size: Size
    elapsed_s: float = 0.0  #: simulated, from the first turn to the last end
    ended: int = 0
    turns: list[Turn] = field(default_factory=list)
    ran: list[tuple[float, float]] = field(default_factory=list)  #: start and end of trials, simulated, by their start
    trips: dict[str, int] = field(default_factory=dict)  #: round trips by role
    bytes: dict[str, int] = field(default_factory=dict)  #: to and from the server by role
    hints: int = 0  #: each goes to every worker
    questions: int = 0  #: of workers
    calls_again: int = 0  #: of the coordinator, to workers other than those it had called before
    server_s: float = 0.0  #: what the server worked

    @property
    def cpu_s(self) -> float:
        """CPU time of the coordinator."""
        return sum(turn.cpu_s for turn in self.turns)

    @property
    def steady_turns(self) -> list[Turn]:
        """Turns for which somebody had called, once every device had been given trials."""
        return [turn for turn in self.turns if turn.woken and turn.at_s >= self.fill_s]

    @property
    def cpu_per_trial_s(self) -> float:
        """CPU time of the coordinator for each trial that it makes in those turns."""
        turns = self.steady_turns
        return sum(turn.cpu_s for turn in turns) / max(1, sum(turn.created for turn in turns))

    @property
    def first_look_s(self) -> float:
        """CPU time of the first look, which reads all trials that the study has."""
        return self.turns[0].cpu_s

    @property
    def idle_look_s(self) -> float:
        """CPU time of a look for which nobody had called; 0 where there was none."""
        looks = [turn.cpu_s for turn in self.turns if not turn.woken]
        return sum(looks) / len(looks) if looks else 0.0

    @property
    def _steady_s(self) -> tuple[float, float]:
        """From when every device has been given trials until there is none left to begin."""
        starts = [start_s for start_s, _ in self.ran]
        filled = min(self.size.devices * self.size.slots, len(starts) // 2)
        return starts[filled], starts[-1]

    @property
    def per_s(self) -> float:
        """Trials that began each second, while devices had had their first and there were more to begin."""
        from_s, to_s = self._steady_s
        return sum(from_s < start_s <= to_s for start_s, _ in self.ran) / (to_s - from_s)

    @property
    def busy(self) -> float:
        """Share of the devices' time in which they ran trials, in the same while."""
        from_s, to_s = self._steady_s
        used_s = sum(max(0.0, min(end_s, to_s) - max(start_s, from_s)) for start_s, end_s in self.ran)
        return used_s / (self.size.devices * self.size.slots * (to_s - from_s))

    @property
    def fill_s(self) -> float:
        """How long it took until every device had been given trials."""
        return self._steady_s[0]

    @property
    def longest_turn_s(self) -> float:
        return max(turn.took_s for turn in self.turns)


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
            vram=REQUEST_BYTES,
            study_name="simulated",
            sampler=_SAMPLERS[size.sampler](size.seed),
        )
        study_id = self._storage.get_study_id_from_name("simulated")
        give_past(self._storage, study_id, self._handle.id, size.past, self._random)
        self._coordinator = self._make_coordinator()
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

        def called(queue: JobQueue, workers: Sequence[str] | None) -> None:
            call(queue, workers)
            self._pass_turn()
            self.outcome.calls_again += 1
            self._call(workers)
            self._begin_segment()

        # The coordinator's lease ends by the server's clock, and simulating a turn takes longer than the turn.
        lead = self._server.keeping(Names(self._settings.pool).leader)
        patches = mock.patch.object(JobQueue, "enqueue", noticed), mock.patch.object(JobQueue, "call", called)
        with patches[0], patches[1], self._server.counting(), lead:
            yield

    # ---- the whole -----------------------------------------------------------------------------------

    def run(self, most_s: float = math.inf) -> Outcome:
        """Simulate until all trials have ended, or `most_s` real seconds have passed."""
        self._at(LOOK_S, self._look)
        self._server.took()
        before = self._server.bytes()
        until_s = time.monotonic() + most_s
        with self._noticing():
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
        self._server.took()
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
        self.outcome.questions += 1
        question = device.question(self.now_s, LIFE_S)
        self._server.took()
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
        running = device.start(taken, ticket, lease_id, self.now_s)
        assert running is not None, "it was taken because it fits"
        assert self._sheet.begin(ticket.trial_id, device.name), "nobody else has it"
        self._server.took()
        execution_id = self._ports[device.name].begin(taken.job_id)
        assert execution_id is not None
        running.execution_id = execution_id
        self._tell(device)
        self._server.charge(self._server.took(), self.now_s)
        mean, spread = math.log(self.size.lasts_s) - 0.125, 0.5
        lasts_s = self._random.lognormvariate(mean, spread)
        self.outcome.ran.append((self.now_s, self.now_s + lasts_s))
        self._at(self.now_s + lasts_s, self._end, device, running)

    def _end(self, device: Device, running: Running) -> None:
        self._sheet.tell(running.ticket.trial_id, device.name, device.device_id)
        device.end(running, self.now_s)
        self.outcome.ended += 1
        self._server.took()
        self._tell(device)
        job_id, lasted_s = running.taken.job_id, self.now_s - running.since_s
        self._ports[device.name].finish(job_id, running.execution_id, "finished", "", lasted_s)
        self._server.charge(self._server.took(), self.now_s)
        self.outcome.hints += 1
        self._woken = True
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
