"""A study's attempts with everything that pictures and the report tell of them. Reads Optuna's trials; else pure."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from vrampool.errors import InputError
from vrampool.measured import trial_memory
from vrampool.memory.explaining import TrialMemory
from vrampool.messages import AttemptFacts, EndKind
from vrampool.storage import attempt_of, mark_of


@dataclass(frozen=True)
class Attempt:
    """One attempt that was started. Times are seconds since the epoch; bytes and seconds are None where unknown."""

    number: int
    root: int
    try_number: int  #: 1, or more for a retry
    state: str  #: name of Optuna's state
    end: str  #: an `EndKind`; "running" while it runs, "lost" without facts
    verdict: str | None
    device: str
    device_name: str
    start_s: float
    end_s: float
    memory: TrialMemory
    facts: AttemptFacts | None = None
    residue_bytes: int | None = None
    back_s: float | None = None  #: from its end until its memory was seen back

    @property
    def height_bytes(self) -> int:
        """What it occupies in a stack: its lease at the end, or its peak where that was more."""
        facts = self.facts
        lease = 0 if facts is None else facts.lease_at_end_bytes or facts.lease_bytes
        return max(lease or (self.memory.request_bytes or 0), self.memory.peak_bytes or 0)

    @property
    def out_of_memory(self) -> bool:
        return self.end in (EndKind.OOM, EndKind.INFEASIBLE)

    @property
    def how(self) -> str:
        """How it ended, in a word or two: "complete", "out of memory (culprit)", "crashed"."""
        words = {EndKind.OOM: "out of memory", EndKind.DEVICE_LOST: "device lost"}.get(self.end, self.end)  # type: ignore[call-overload]
        return f"{words} ({self.verdict})" if self.verdict else str(words)


@dataclass(frozen=True)
class StudyAttempts:
    """The attempts of one study, by number."""

    name: str
    attempts: tuple[Attempt, ...]
    distributions: Mapping[str, BaseDistribution]  #: of every parameter that a trial has had, the latest one

    @property
    def measured(self) -> tuple[Attempt, ...]:
        """Those whose peak is known."""
        return tuple(attempt for attempt in self.attempts if attempt.memory.peak_bytes)

    @property
    def devices(self) -> tuple[tuple[str, str], ...]:
        """Id and name of each device, by name."""
        found = {attempt.device: attempt.device_name for attempt in self.attempts}
        return tuple(sorted(found.items(), key=lambda item: (item[1], item[0])))

    @property
    def ended(self) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.end != "running")


def read_attempts(study: Any, releases: Iterable[Mapping[str, Any]] | None = None) -> StudyAttempts:
    """Read the attempts of a study, or of the study of a handle.

    Args:
        study: An `optuna.Study`, or a `Handle`, which also knows what came back after each trial.
        releases: What came back after each trial (`queueing.History.releases`); None: what a handle knows.

    Raises:
        InputError: it is neither, or nothing of it ran in a pool.
    """
    if releases is None:
        releases = study.releases() if hasattr(study, "releases") else ()
    study = getattr(study, "study", study)
    if not hasattr(study, "get_trials") or not hasattr(study, "study_name"):
        raise InputError(f"a picture needs an Optuna study or a handle, not {type(study).__name__}")
    return gather(study.study_name, study.get_trials(deepcopy=False), releases)


def gather(name: str, trials: Sequence[FrozenTrial], releases: Iterable[Mapping[str, Any]] = ()) -> StudyAttempts:
    """Gather the attempts of a study from its trials.

    Raises:
        InputError: none of the trials ran in a pool.
    """
    by_number = {int(release["number"]): release for release in releases}
    attempts = tuple(
        _read(trial, by_number.get(trial.number, {})) for trial in trials if _in_pool(trial) and trial.datetime_start
    )
    if not attempts:
        raise InputError(f"no trial of {name} has run in a pool yet, so there is nothing to draw")
    distributions: dict[str, BaseDistribution] = {}
    for trial in trials:
        distributions |= trial.distributions
    return StudyAttempts(name, attempts, distributions)


def _in_pool(trial: FrozenTrial) -> bool:
    return mark_of(trial) is not None or attempt_of(trial) is not None


def _read(trial: FrozenTrial, release: Mapping[str, Any]) -> Attempt:
    facts, mark = attempt_of(trial), mark_of(trial)
    running = trial.state == TrialState.RUNNING
    start_s = _epoch(trial.datetime_start)
    return Attempt(
        number=trial.number,
        root=trial.number if mark is None or mark.root is None else mark.root,
        try_number=1 if mark is None else mark.attempt,
        state=trial.state.name,
        end="running" if running else str(facts.end) if facts is not None else str(EndKind.LOST),
        verdict=None if facts is None else facts.verdict,
        device="unknown" if facts is None else facts.device,
        device_name="a device that is not known" if facts is None else facts.device_name or facts.device,
        start_s=start_s,
        end_s=time.time() if trial.datetime_complete is None else max(_epoch(trial.datetime_complete), start_s),
        memory=trial_memory(trial),
        facts=facts,
        residue_bytes=release.get("residue_bytes"),
        back_s=release.get("back_s"),
    )


def _epoch(moment: datetime | None) -> float:
    return moment.timestamp() if moment is not None else math.nan


def is_choice(distribution: BaseDistribution | None, values: Sequence[Any]) -> bool:
    """Return whether a parameter is a choice (it has no order), by its distribution or else by its values."""
    if distribution is not None:
        return isinstance(distribution, CategoricalDistribution)
    return any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values)


def choices_of(distribution: BaseDistribution | None, values: Iterable[Any]) -> list[str]:
    """Return the choices that occur, as text: in the order in which they were given, else numbers by size."""
    seen = set(values)
    if isinstance(distribution, CategoricalDistribution):
        ordered = [choice for choice in distribution.choices if choice in seen]
        seen -= set(ordered)
    else:
        ordered = []
    numbers = sorted(value for value in seen if isinstance(value, (int, float)))
    rest = sorted(str(value) for value in seen if not isinstance(value, (int, float)))
    return list(dict.fromkeys([*map(str, ordered), *map(str, numbers), *rest]))


def is_log(distribution: BaseDistribution | None, values: Sequence[Any]) -> bool:
    """Return whether a parameter is best drawn on a logarithmic axis."""
    if is_choice(distribution, values) or not values or min(values) <= 0:
        return False
    declared = isinstance(distribution, (FloatDistribution, IntDistribution)) and distribution.log
    return declared or max(values) / min(values) >= 30
