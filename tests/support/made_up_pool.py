"""A pool made up for the page's tests: devices whose trials come and go, and studies that get on. No Redis, no storage.

What it tells has the shape of the real thing: the same records, samples and trials as `PoolSource` returns.
"""

from __future__ import annotations

import datetime
import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from vrampool.dashboard.source import StudyReading, Submission
from vrampool.errors import InputError
from vrampool.messages import AttemptFacts, ObjectiveRef, SubmissionSpec
from vrampool.queueing import MpsState, RunningTrial, WaitingJob, WorkerRecord
from vrampool.storage import ATTEMPT, CLAIM, MARK, REQUEST, Mark, SubmissionRow, SubmissionState
from vrampool.units import GIB, MIB

SAMPLE_S = 0.5
STUDIES = ("resnet-cifar", "translation", "digits")


@dataclass
class Run:
    """A trial that runs for a while."""

    study: str
    number: int
    lease_bytes: int
    start: float
    life_s: float

    def held(self, at: float) -> int:
        """Grow in two seconds, then breathe."""
        age_s = at - self.start
        share = min(1.0, age_s / 2) * (0.78 + 0.12 * math.sin(self.number + at / (4 + self.number % 5)))
        return int(self.lease_bytes * share)


@dataclass
class MadeUpPool:
    """Looks like a pool that has run for half an hour.

    Args:
        devices: How many.
        slots: Trials on each.
        seed: Makes it the same every time.
    """

    devices: int = 8
    slots: int = 8
    seed: int = 1
    past_s: float = 1800.0
    pool: str = "lab"
    total_bytes: int = 80 * GIB
    finished: int = 60  #: trials of the first study that have ended
    fault: Exception | None = None  #: raised by all that asks Redis
    gone: set[int] = field(default_factory=set)  #: devices whose worker fell silent
    states: dict[int, tuple[str, str]] = field(default_factory=dict)
    mps: dict[int, MpsState] = field(default_factory=dict)  #: where it was asked for
    done: list[tuple[str, str]] = field(default_factory=list)  #: what was asked of it

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._runs: list[list[Run]] = [[] for _ in range(self.devices)]
        self._numbers = dict.fromkeys(STUDIES, 100)
        self._samples: list[list[dict[str, Any]]] = [[] for _ in range(self.devices)]
        self._ended: dict[tuple[str, int], list[FrozenTrial]] = {}
        self._at = time.time() - self.past_s
        self._advance()

    @property
    def budget_bytes(self) -> int:
        return int(self.total_bytes * 0.85)

    # ---- time --------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        while self._at + SAMPLE_S <= time.time():
            self._at += SAMPLE_S
            for place, runs in enumerate(self._runs):
                runs[:] = [run for run in runs if self._at - run.start < run.life_s]
                room = self.budget_bytes - 2 * GIB - sum(run.lease_bytes for run in runs)
                if len(runs) < self.slots and self._random.random() < 0.35:
                    self._start(runs, room)
                self._samples[place].append(self._sample(place))

    def _start(self, runs: list[Run], room_bytes: int) -> None:
        study = STUDIES[self._random.randrange(2)]
        lease = int(self._random.uniform(0.06, 0.14) * self.total_bytes)
        if lease > room_bytes:
            return
        self._numbers[study] += 1
        runs.append(Run(study, self._numbers[study], lease, self._at, self._random.uniform(25, 240)))

    def _sample(self, place: int) -> dict[str, Any]:
        runs = self._runs[place]
        held = [run.held(self._at) for run in runs]
        strangers = int(1.2 * GIB) if place % 3 == 1 else 0
        return {
            "at": self._at,
            "at_s": self._at,
            "worker": self._name(place),
            "host": self._host(place),
            "device_id": f"GPU-{place}",
            "used_bytes": sum(held) + strangers + 600 * MIB,
            "driver_reserved_bytes": 600 * MIB,
            "strangers_bytes": strangers,
            "utilisation": min(0.98, 0.12 * len(runs) + 0.08 * math.sin(self._at / 5 + place)) if runs else 0.0,
            "trials": [
                {
                    "study": run.study,
                    "number": run.number,
                    "lease_bytes": run.lease_bytes,
                    "measured_bytes": now,
                    "torch_reserved_bytes": max(0, now - 620 * MIB),
                    "allocated_bytes": int(now * 0.6),
                    "cap_bytes": run.lease_bytes - 620 * MIB,
                }
                for run, now in zip(runs, held, strict=True)
            ],
        }

    def _host(self, place: int) -> str:
        return "node-a" if place < 4 else "node-b"

    def _name(self, place: int) -> str:
        return f"{self._host(place)}-{place}-abc123"

    # ---- Source ------------------------------------------------------------------------------------------

    def workers(self) -> list[WorkerRecord]:
        if self.fault is not None:
            raise self.fault
        self._advance()
        return [self._worker(place) for place in range(self.devices) if place not in self.gone]

    def _worker(self, place: int) -> WorkerRecord:
        runs = self._runs[place]
        leased = sum(run.lease_bytes for run in runs)
        free = max(0, self.budget_bytes - 600 * MIB - leased)
        said = f"GPU {place % 4} has {free / GIB:.1f} GiB free of its {self.budget_bytes / GIB:.1f} GiB"
        state, reason = self.states.get(place, ("ready", f"{said} ({len(runs)} trials hold {leased / GIB:.1f} GiB)"))
        return WorkerRecord(
            name=self._name(place),
            host=self._host(place),
            pid=1000 + place,
            device_id=f"GPU-{place}",
            device_name=f"GPU {place % 4} (NVIDIA A100 80GB PCIe)",
            device_kind="cuda",
            total_bytes=self.total_bytes,
            budget_bytes=self.budget_bytes,
            free_bytes=free,
            slots=self.slots,
            state=state,
            reason=reason,
            running=tuple(
                RunningTrial(run.study, run.number, run.lease_bytes, run.held(self._at), run.start, run.lease_bytes)
                for run in runs
            ),
            mps=self.mps.get(place),
            beat_at=time.time(),
        )

    def waiting(self) -> list[WaitingJob]:
        now = time.time()
        return [
            WaitingJob("translation-300", "sub-translation", 300, 44 * GIB, now - 83),
            WaitingJob("resnet-cifar-301", "sub-resnet-cifar", 301, 38 * GIB, now - 6),
            WaitingJob("translation-302", "sub-translation", 302, None, now - 2),
        ]

    def samples(self, device_id: str, since: float) -> list[dict[str, Any]]:
        place = int(device_id.removeprefix("GPU-"))
        return [sample for sample in self._samples[place] if sample["at"] >= since]

    def releases(self) -> list[dict[str, Any]]:
        return [{"at": time.time() - 60, "device_id": "GPU-1", "residue_bytes": 300 * MIB}]

    def studies(self) -> list[StudyReading]:
        return [
            self._study("resnet-cifar", ("minimize",), SubmissionState.OPEN, self.finished, 200),
            self._study("translation", ("maximize", "minimize"), SubmissionState.OPEN, 34, 120),
            self._study("digits", ("maximize",), SubmissionState.DONE, 80, 80),
        ]

    def _study(
        self, name: str, directions: tuple[str, ...], state: SubmissionState, ended: int, wanted: int
    ) -> StudyReading:
        identity = f"sub-{name}"
        objective = ObjectiveRef("import", f"/home/ada/search/{name.replace('-', '_')}.py:objective")
        spec = SubmissionSpec(identity, name, objective, n_trials=wanted)
        row = SubmissionRow(identity, name, "", state, "", STUDIES.index(name), time.time() - 1800)
        numbers = random.Random(name)
        if (name, ended) not in self._ended:
            self._ended[name, ended] = [self._trial(identity, number, directions, numbers) for number in range(ended)]
        trials = list(self._ended[name, ended])
        if state == SubmissionState.OPEN:
            now = datetime.datetime.now()
            mark = {MARK: Mark(identity).to_json()}
            for number in range(ended, ended + 13):
                running = number < ended + 12
                state_, start = (TrialState.RUNNING, now) if running else (TrialState.WAITING, None)
                trials.append(FrozenTrial(number, state_, None, start, None, {}, {}, mark, {}, {}, number))
        return StudyReading(name, directions, (Submission(row, spec),), tuple(trials))

    def _trial(self, identity: str, number: int, directions: tuple[str, ...], numbers: random.Random) -> FrozenTrial:
        oom = number % 17 == 5
        state = TrialState.FAIL if oom else TrialState.PRUNED if number % 4 == 3 else TrialState.COMPLETE
        request = int(numbers.uniform(4, 11) * GIB) if number > 2 else None
        peak = int((request or 8 * GIB) * (1.02 if oom else numbers.uniform(0.7, 0.97)))
        facts = AttemptFacts(
            end="oom" if oom else state.name.lower(),
            verdict=("victim" if number % 2 else "culprit") if oom else None,
            request_bytes=request,
            lease_bytes=request or 60 * GIB,
            peak_bytes=peak,
            spawn_s=0.0,
            handover_s=numbers.uniform(0.2, 0.5),
            run_s=numbers.uniform(20, 90),
            wait_s=1.0,
            text="CUDA out of memory. Tried to allocate 2.00 GiB" if oom else "",
        )
        falling = 1.6 * math.exp(-number / 25) + numbers.uniform(0.12, 0.55)
        values = [falling if word == "minimize" else 1 - falling / 3 for word in directions]
        start = datetime.datetime.now() - datetime.timedelta(seconds=1700 - number * 1500 / max(80, self.finished))
        trial = create_trial(
            state=state,
            values=values if state == TrialState.COMPLETE else None,
            params={"lr": 10 ** numbers.uniform(-4, -1), "layers": numbers.randrange(2, 9)},
            distributions={"lr": FloatDistribution(1e-4, 1e-1, log=True), "layers": IntDistribution(2, 8)},
            user_attrs={
                MARK: Mark(
                    identity,
                    retry_of=number - 1 if number % 17 == 6 else None,
                    root=number - 1 if number % 17 == 6 else None,
                ).to_json(),
                CLAIM + "node-a-0-abc123": 1.0,
            },
        )
        trial.number = number
        trial.datetime_start, trial.datetime_complete = start, start + datetime.timedelta(seconds=30)
        trial.user_attrs[ATTEMPT] = facts.to_json()
        predicted = int(0.9 * request) if request and number >= 20 else None
        trial.user_attrs[REQUEST] = {"bytes": request, "reason": "", "predicted": predicted}
        return trial

    # ---- Actions -----------------------------------------------------------------------------------------

    def study(self, action: str, name: str) -> str:
        if name == "digits":
            raise InputError("study digits has nothing left to stop")
        self.done.append((action, name))
        return f"{name}: {action}"

    def worker(self, action: str, name: str) -> str:
        self.done.append((action, name))
        place = next(place for place in range(self.devices) if self._name(place) == name)
        if action == "pause":
            self.states[place] = ("paused", "from the dashboard")
        elif action == "resume":
            self.states.pop(place, None)
        return f"{name}: {action}"
