"""A card that trials make slower for each other, on an injected clock: to try admission on throughput curves.

The curves are those measured on a H200 (`gpu.md`): total training steps per second against equal trials at once, as
multiples of what one alone does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vrampool_worker.ledger.concurrency import Concurrency

SMALL = {1: 1.0, 2: 1.8, 4: 3.5, 8: 3.6, 14: 3.6}
SMALL_MPS = {1: 1.0, 2: 2.2, 4: 4.6, 8: 7.3, 14: 7.2}
LARGE = {1: 1.0, 2: 0.91, 4: 0.91, 8: 0.91, 14: 0.91}
LARGE_MPS = {1: 1.0, 2: 1.18, 4: 1.19, 8: 1.18, 14: 1.17}
#: GPM SM utilisation measured beside them; of large trials only one alone was, and it is held for the others.
SMALL_BUSY = {1: 0.17, 2: 0.33, 4: 0.53, 8: 0.54, 14: 0.54}
LARGE_BUSY = {1: 0.88, 14: 0.88}


def at(curve: Mapping[int, float], trials: int) -> float:
    """Read a curve between its points, and beyond the last one."""
    if not trials:
        return 0.0
    known = sorted(curve)
    if trials >= known[-1]:
        return curve[known[-1]]
    more = next(level for level in known if level >= trials)
    fewer = max(level for level in known if level <= trials)
    if more == fewer:
        return curve[more]
    share = (trials - fewer) / (more - fewer)
    return curve[fewer] + share * (curve[more] - curve[fewer])


@dataclass
class _Trial:
    name: str
    study: str
    work_s: float  #: seconds it takes alone
    starts_s: float  #: seconds until its first step
    done_s: float = 0.0
    told: int = 0


@dataclass
class CurveCard:
    """A card, its trials, and what admitted them.

    Args:
        curve: Total throughput against trials at once.
        busy: SM utilisation against trials at once; None: the card does not tell.
        counts_every_s: Work between two counts that a trial tells, in seconds of a lone one; None: it tells none.
        work_s: What a trial takes alone, by its number.
        noise: Relative spread of the card's speed from one tick to the next.
    """

    curve: Mapping[int, float]
    busy: Mapping[int, float] | None = None
    counts_every_s: float | None = 0.1
    work_s: Callable[[int], float] = lambda number: 20.0
    noise: float = 0.03
    starts_s: float = 0.35  #: as measured with a spare; tick by tick it is rounded up
    most: int = 16
    study: str = "digits"
    seed: int = 0
    now_s: float = 1000.0
    done_s: float = 0.0
    running: list[_Trial] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)  #: trials at once at every tick
    limits: list[int] = field(default_factory=list)  #: what admission allowed, each time it changed

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._number = 0

    def run(self, seconds: float, admission: Concurrency | int) -> float:
        """Let time pass in ticks of 0.2 s, with a reading every 0.6 s; return the work done meanwhile."""
        before_s = self.done_s
        for tick in range(round(seconds * 5)):
            self.now_s += 0.2
            self._work(0.2, admission)
            if tick % 3 == 0 and isinstance(admission, Concurrency):
                self._read(admission)
            self._admit(admission)
            self.levels.append(len(self.running))
        return self.done_s - before_s

    def _read(self, admission: Concurrency) -> None:
        busy = None if self.busy is None else at(self.busy, self._training) * self._random.gauss(1, self.noise)
        admission.observe({trial.name: trial.study for trial in self.running}, busy, self.now_s)
        if not self.limits or self.limits[-1] != admission.limit:
            self.limits.append(admission.limit)

    @property
    def _training(self) -> int:
        return sum(trial.starts_s <= 0 for trial in self.running)

    def _work(self, seconds: float, admission: Concurrency | int) -> None:
        training = [trial for trial in self.running if trial.starts_s <= 0]
        speed = at(self.curve, len(training)) / len(training) if training else 0.0
        speed *= max(0.0, self._random.gauss(1, self.noise))
        for trial in self.running:
            if trial.starts_s > 0:
                trial.starts_s -= seconds
                continue
            step_s = min(speed * seconds, trial.work_s - trial.done_s)
            trial.done_s += step_s
            self.done_s += step_s
            if self.counts_every_s is not None and isinstance(admission, Concurrency):
                told = int(trial.done_s / self.counts_every_s)
                if told > trial.told:
                    trial.told = told
                    admission.progressed(trial.name, told, self.now_s)
        self.running = [trial for trial in self.running if trial.done_s < trial.work_s - 1e-9]

    def _admit(self, admission: Concurrency | int) -> None:
        count = len(self.running)
        most = admission if isinstance(admission, int) else self.most
        if count < most and (
            isinstance(admission, int) or not admission.obstacle(count)
        ):  # one at a time, as a worker takes them
            self._number += 1
            self.running.append(
                _Trial(f"{self.study} {self._number}", self.study, self.work_s(self._number), self.starts_s)
            )


def best_fixed(make: Callable[[], CurveCard], seconds: float, levels: tuple[int, ...] = (1, 2, 4, 8, 14)) -> float:
    """Return the work that the best fixed number of trials at once does on such a card."""
    return max(make().run(seconds, level) for level in levels)
