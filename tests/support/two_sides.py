"""A study as the pool drives it, without the pool: a coordinator's side and workers' sides of one database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import optuna
import sqlalchemy as sa
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from vrampool.storage import (
    Mark,
    PlannedTrial,
    PoolStorage,
    QueueView,
    WorkerView,
    claim,
    dump_plan,
    is_fenced,
    open_storage,
    record_plan,
)

Objective = Callable[[Trial], float]


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Worker:
    name: str
    storage: PoolStorage
    view: WorkerView
    study: optuna.Study

    def open(self, trial_id: int) -> PlannedTrial:
        """Claim a trial and open it as a worker does."""
        assert claim(self.view, trial_id, self.name)
        return PlannedTrial(self.study, trial_id)

    def run(self, trial_id: int, objective: Objective) -> FrozenTrial:
        """Claim, run and tell a trial."""
        trial = self.open(trial_id)
        try:
            value = objective(trial)
        except optuna.TrialPruned:
            return self.tell(trial, state=TrialState.PRUNED)
        return self.tell(trial, value)

    def tell(self, trial: Trial, value: float | None = None, state: TrialState | None = None) -> FrozenTrial:
        with self.view.fresh():
            try:
                return self.study.tell(trial.number, value, state)
            except RuntimeError:  # `study.stop()` of a sampler that has nothing left
                return self.view.get_trial(trial._trial_id)


@dataclass
class TwoSides:
    """Build with `two_sides`."""

    url: str
    storage: PoolStorage
    study: optuna.Study
    workers: list[Worker]
    clock: Clock = field(default_factory=Clock)

    @property
    def study_id(self) -> int:
        return int(self.study._study_id)

    @property
    def trials(self) -> list[FrozenTrial]:
        return self.storage.get_all_trials(self.study_id)

    def ask(self, space: dict[str, BaseDistribution] | None = None) -> Trial:
        """Ask for a trial, keep its plan."""
        trial = self.study.ask(fixed_distributions=space)
        record_plan(self.storage, trial._trial_id, dump_plan(trial))
        return trial

    def drive(
        self, objective: Objective, n_trials: int, *, depth: int, space: Callable[[], dict[str, BaseDistribution]]
    ) -> None:
        """Run trials with `depth` of them waiting ahead; workers take turns."""
        waiting: list[int] = []
        for turn in range(n_trials):
            while len(waiting) < min(depth, n_trials - turn):
                waiting.append(self.ask(space())._trial_id)
            self.workers[turn % len(self.workers)].run(waiting.pop(0), objective)

    def close(self) -> None:
        for one in (self.storage, *(worker.storage for worker in self.workers)):
            one.close()


def two_sides(
    url: str, sampler: Callable[[int], BaseSampler], *, workers: int = 1, seeds: Sequence[int] = (0, 1, 2)
) -> TwoSides:
    """Open a database from several sides.

    Args:
        url: A database that is set up and has no study.
        sampler: Makes a sampler from a seed; the coordinator gets the first of `seeds`, workers the next.
        workers: How many.
    """
    storage = open_storage(url, create_schema=False)
    storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "s")
    clock = Clock()
    sides = []
    for index in range(workers):
        own = open_storage(url, create_schema=False)
        view = WorkerView(own, clock=clock)
        study = optuna.Study(study_name="s", storage=view, sampler=sampler(seeds[index + 1]))
        sides.append(Worker(f"w{index}", own, view, study))
    study = optuna.Study(study_name="s", storage=QueueView(storage, Mark("s1")), sampler=sampler(seeds[0]))
    return TwoSides(url, storage, study, sides, clock)


class Statements:
    """SQL statements and commits of a storage while it is watched."""

    def __init__(self, storage: PoolStorage) -> None:
        self.texts: list[str] = []
        self.commits = 0
        sa.event.listen(storage.database.engine, "before_cursor_execute", self._executed)
        sa.event.listen(storage.database.engine, "commit", self._committed)

    def clear(self) -> None:
        self.texts.clear()
        self.commits = 0

    def _executed(self, connection: object, cursor: object, text: str, *rest: object) -> None:
        self.texts.append(text)

    def _committed(self, connection: object) -> None:
        if not self.texts or any(word in text for word in ("INSERT", "UPDATE", "DELETE") for text in self.texts):
            self.commits += 1


__all__ = ["Clock", "Statements", "TwoSides", "Worker", "is_fenced", "two_sides"]
