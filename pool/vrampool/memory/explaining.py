"""What is known of a study's memory, for people and pages: each trial, what drives it, how good the model is. Pure.

`explain` is given rows of trials (`vrampool.measured.trial_memory` makes them from Optuna's) and returns figures only;
whoever draws or prints them decides how. With scikit-learn the model is fitted here, from the same peaks and by the
same code as in the coordinator; without it everything else is still told.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from vrampool.memory.learning.fitting import available
from vrampool.memory.peaks import PastPeak, Taught
from vrampool.units import MIB

#: Modules that were imported ahead are told of where so many trials of either kind hold so much more.
_AHEAD_TRIALS = 3
_AHEAD_BYTES = 64 * MIB


@dataclass(frozen=True)
class TrialMemory:
    """The memory of one attempt. Bytes; None where nobody knows."""

    number: int
    state: str  #: Optuna's, for example "COMPLETE"
    params: Mapping[str, Any]
    end: str | None = None  #: an `EndKind`
    attempt: int = 1  #: 1, or more for a retry
    request_bytes: int | None = None  #: None: exclusive, or not sized
    request_reason: str = ""
    predicted_bytes: int | None = None  #: by the model, before it ran
    lease_bytes: int | None = None  #: the largest it had
    reserved_bytes: int | None = None  #: kept from others at its end; less than a lease of which a part was lent to it
    peak_bytes: int | None = None
    at_least: bool = False  #: the peak is a lower bound
    overhead_bytes: int | None = None
    over_gib: float | None = None  #: by how much its peak was over the largest budget; negative: it fitted
    run_s: float | None = None
    refused: int = 0  #: proposals that were refused before this one, for they fit no device
    ahead: bool | None = None  #: on the CPU: modules were imported ahead in its process, and count in its peak
    past: PastPeak | None = None  #: what the model learns from it


@dataclass(frozen=True)
class Driver:
    """What one parameter does to memory."""

    name: str
    factor: float  #: on memory without overhead, from its lowest tenth to its highest: 1 is nothing
    share: float  #: of the effects of all parameters; they add up to 1
    direction: str  #: "grows", "shrinks", "does not matter", "mixed" (a choice, or not clear yet)


@dataclass(frozen=True)
class ModelState:
    """How good the model is now, by predicting each trial from all others."""

    trials: int  #: whole peaks it learned from
    bounds: int  #: lower bounds it learned from
    others: int  #: peaks it was given of other studies with the same code
    median_error: float  #: of the predicted peak
    under: float  #: part of the trials for which too little would be asked
    overhead_bytes: int  #: what a trial holds whatever its parameters are


@dataclass(frozen=True)
class Record:
    """How well the requests did that were really made, over trials whose peak is known."""

    predicted: int  #: trials that ran with a prediction
    median_error: float | None  #: of those predictions
    under: int  #: trials that held more than was asked for, or ran out of memory for it
    over_reserved: float | None  #: reserved and not used, as a part of the peaks, weighted by running time
    ahead_bytes: int | None  #: held more where modules were imported ahead that the objective does not need
    out_of_memory: int  #: attempts
    infeasible: int  #: trials that fitted no device
    refused: int  #: proposals that were refused, for measured trials said that they fit no device


@dataclass(frozen=True)
class Explanation:
    """All of it."""

    trials: tuple[TrialMemory, ...]
    drivers: tuple[Driver, ...]  #: the strongest first; empty while there is no model
    model: ModelState | None
    record: Record
    note: str = ""  #: why there is no model

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON types; bytes, seconds, parts of one."""
        trials = [{k: v for k, v in _fields(trial).items() if k != "past"} for trial in self.trials]
        return {
            "trials": trials,
            "drivers": [_fields(driver) for driver in self.drivers],
            "model": None if self.model is None else _fields(self.model),
            "record": _fields(self.record),
            "note": self.note,
        }


def explain(trials: Sequence[TrialMemory], taught: Taught | None = None) -> Explanation:
    """Explain the memory of a study.

    Args:
        trials: Its attempts, by number.
        taught: What the coordinator learns from (`coordinator.earlier.taught`); None: that is not known here, so the
            study's own peaks.
    """
    record = record_of(trials)
    if taught is None:
        taught = Taught(tuple(trial.past for trial in trials if trial.past is not None))
    if not available():
        note = "scikit-learn is not here, so nothing is learned from parameters: pip install 'vrampool[learn]'"
        return Explanation(tuple(trials), (), None, record, note)
    from vrampool.memory.learning.learned import learn
    from vrampool.memory.learning.model import LEAST_TRIALS

    learned = learn(taught.peaks)
    if learned is None:
        note = f"fewer than {LEAST_TRIALS} trials have shown their whole peak, so nothing is learned yet"
        return Explanation(tuple(trials), (), None, record, note)
    words = {1: "grows", -1: "shrinks", 0: "does not matter", None: "mixed"}
    drivers = tuple(
        Driver(effect.name, round(effect.factor, 4), round(effect.share, 4), words[effect.direction])
        for effect in learned.effects.values()
    )
    quality = learned.quality
    state = ModelState(
        trials=quality.trials,
        bounds=quality.bounds,
        others=len(taught.others),
        median_error=quality.median_error,
        under=quality.under,
        overhead_bytes=learned.overhead_bytes,
    )
    return Explanation(tuple(trials), drivers, state, record)


def record_of(trials: Sequence[TrialMemory]) -> Record:
    """Return how well the requests of these attempts did."""
    whole = [trial for trial in trials if trial.peak_bytes and not trial.at_least]
    errors = [
        abs(trial.predicted_bytes - trial.peak_bytes) / trial.peak_bytes
        for trial in whole
        if trial.predicted_bytes and trial.peak_bytes
    ]
    ooms = [trial for trial in trials if trial.end == "oom"]
    over = [trial for trial in whole if trial.request_bytes and (trial.peak_bytes or 0) > trial.request_bytes]
    used = sum((trial.peak_bytes or 0) * (trial.run_s or 0.0) for trial in whole if trial.reserved_bytes)
    reserved = sum((trial.reserved_bytes or 0) * (trial.run_s or 0.0) for trial in whole if trial.reserved_bytes)
    return Record(
        predicted=sum(trial.predicted_bytes is not None for trial in trials),
        median_error=median(errors) if errors else None,
        under=len(ooms) + len(over),
        over_reserved=reserved / used - 1 if used > 0 else None,
        ahead_bytes=_ahead(whole),
        out_of_memory=len(ooms),
        infeasible=sum(trial.end == "infeasible" for trial in trials),
        refused=sum(trial.refused for trial in trials),
    )


def _ahead(whole: Sequence[TrialMemory]) -> int | None:
    """Return what trials held more whose process had imported modules ahead; None: no difference that is plain.

    An objective that imports them itself holds them in any process, and there is no such difference.
    """
    with_them = [trial.peak_bytes or 0 for trial in whole if trial.ahead is True]
    without = [trial.peak_bytes or 0 for trial in whole if trial.ahead is False]
    if min(len(with_them), len(without)) < _AHEAD_TRIALS:
        return None
    lowest, highest = quantiles(with_them, n=4)[0], quantiles(without, n=4)[2]
    more = int(median(with_them) - median(without))
    return more if lowest > highest and more >= _AHEAD_BYTES else None


def _fields(row: Any) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
