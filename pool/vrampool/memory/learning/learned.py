"""What a study's peaks teach: a prediction for parameters, with its margin, and how good it is."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from vrampool.memory.learning import model
from vrampool.memory.learning.conditions import may_have
from vrampool.memory.learning.effects import Effect, directions, effects
from vrampool.memory.learning.features import Array, Kind
from vrampool.memory.learning.guard import conformal, floors_of, guarded
from vrampool.memory.peaks import PastPeak
from vrampool.units import MIB

#: Part of new trials whose peak the request is to cover.
LEVEL = 0.97
#: The margin is never less than this part of what is beyond the overhead,
_LEAST_MARGIN = 0.05
#: nor, while trials are few, than this divided by their number,
_FEW_MARGIN = 4.0
#: and with all that is added outside the range seen never more than as much again (a logarithm): while a model is
#: unsure, a trial that is tried again costs less than a card kept free. More is lent where nobody else wants it.
_MOST_MARGIN = math.log(2)
#: It is not less than so many bytes either: allocators take memory in pieces, and libraries load kernels late.
_LEAST_MARGIN_BYTES = 64 * MIB
#: A trial is said to need no less than its prediction less so many standard deviations. With so few of them 3 of 781
#: refused proposals would have fitted after all (`tests/support/infeasible_corner.py`): its doubts are generous.
_SURE_SPREADS = 0.3
#: So many ways in which the parameters that are not planned may turn out are looked at.
_MOST_COMPLETIONS = 12
#: Without a measured overhead it is taken for one of these parts of the smallest peak: the one that predicts best.
_OVERHEAD_PARTS = (0.8, 0.0, 0.5, 0.9, 0.96)


@dataclass(frozen=True)
class Prediction:
    """What a trial is expected to hold, its overhead included."""

    middle_bytes: int  #: as likely too low as too high
    upper_bytes: int  #: with its margin: what is asked for
    cautious_bytes: int  #: with all the margin that its errors ask for: what is lent to it while nobody else wants it
    least_bytes: int  #: what it will hardly stay below; 0 where nothing of the kind can be said
    outside: tuple[str, ...]  #: parameters beyond anything seen so far

    @property
    def margin(self) -> float:
        """What the margin adds, as a part of the prediction."""
        return self.upper_bytes / self.middle_bytes - 1


@dataclass(frozen=True)
class Quality:
    """How good the model is now, by predictions for trials it was not shown (leave one out)."""

    trials: int  #: whole peaks it was fitted on
    bounds: int  #: lower bounds that told it something
    median_error: float  #: of the peak, overhead included
    under: float  #: part of the trials whose peak is above what would have been asked for


@dataclass(frozen=True)
class Learned:
    """A fitted model of a study's peaks. Immutable: a later fit is another object."""

    fit: model.Fit
    overhead_bytes: int
    spreads: float  #: the margin, in standard deviations of a prediction
    effects: Mapping[str, Effect]
    directions: Mapping[str, int | None]
    quality: Quality
    smallest_bytes: int  #: least that would be asked for any of the trials seen

    def predict(
        self, params: Mapping[str, Any], overhead_bytes: int | None = None, *, whole: bool = False
    ) -> Prediction:
        """Predict the peak of a trial.

        Args:
            params: Its planned parameters.
            overhead_bytes: Of its process on the device it will run on; None: as measured so far.
            whole: The parameters are all that the trial has. Else those it lacks are not known yet (a conditional
                parameter is never planned), and the greediest of those seen with the same choices are assumed.
        """
        rows = [params] if whole else self._completions(params)
        found = [self._predict(row, overhead_bytes) for row in rows]
        return Prediction(
            int(median(item.middle_bytes for item in found)),
            max(item.upper_bytes for item in found),
            max(item.cautious_bytes for item in found),
            min(item.least_bytes for item in found),
            found[0].outside,
        )

    def _predict(self, params: Mapping[str, Any], overhead_bytes: int | None) -> Prediction:
        where = self.fit.encoder.outside(params)
        middle, spread, factor = guarded(self.fit, params, where, self.directions)
        fixed_bytes = self.overhead_bytes if overhead_bytes is None else overhead_bytes
        cautious = max(self.spreads * spread, _least_margin(self.quality.trials)) + math.log(factor)
        middle_bytes = fixed_bytes + _bytes(middle)
        cautious_bytes, upper_bytes = (
            max(fixed_bytes + _bytes(middle + margin), middle_bytes + _LEAST_MARGIN_BYTES)
            for margin in (cautious, min(cautious, _MOST_MARGIN))
        )
        names = [self.fit.encoder.columns[index].name for index, _ in where.beyond] + list(where.unseen)
        outside = tuple(dict.fromkeys(name for name in names if self.directions.get(name) != 0))
        floors = [floor - _SURE_SPREADS * doubt for floor, doubt in floors_of(self.fit, params, where, self.directions)]
        least_bytes = fixed_bytes + _bytes(max(floors)) if floors else 0
        asked_bytes = -(-upper_bytes // MIB) * MIB
        return Prediction(middle_bytes, asked_bytes, max(cautious_bytes, asked_bytes), least_bytes, outside)

    def _completions(self, params: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the parameters with what they lack taken from trials that made the same choices."""
        known = {column.name for column in self.fit.encoder.columns} | set(self.fit.encoder.constant)
        rows = [row.params or {} for row in self.fit.rows]
        choices = {column.name for column in self.fit.encoder.columns if column.kind == Kind.CHOICE} & set(params)
        missing, deciding = may_have(known - set(params), params, rows, choices)
        if not missing:
            return [params]
        seen = list(zip(rows, self.fit.targets, strict=True))
        alike = next(filter(None, (_with_choices(seen, params, names) for names in (choices, deciding))), seen)
        found: dict[str, Mapping[str, Any]] = {}
        for row, _ in sorted(alike, key=lambda item: -item[1]):
            rest = {name: row[name] for name in sorted(missing) if name in row}
            found.setdefault(repr(rest), {**params, **rest})
            if len(found) == _MOST_COMPLETIONS:
                break
        return list(found.values())

    @property
    def trials(self) -> int:
        """Whole peaks it was fitted on."""
        return self.quality.trials

    @property
    def drivers(self) -> list[str]:
        """Names of the parameters that memory follows, the strongest first."""
        return [effect.name for effect in self.effects.values() if effect.share >= 0.08 and effect.factor >= 1.1]


def _with_choices(
    seen: Sequence[tuple[Mapping[str, Any], float]], params: Mapping[str, Any], names: Collection[str]
) -> list[tuple[Mapping[str, Any], float]]:
    return [item for item in seen if all(item[0].get(name) == params[name] for name in names)]


def learn(peaks: Sequence[PastPeak], *, before: Learned | None = None) -> Learned | None:
    """Learn from the peaks of trials.

    Args:
        peaks: The oldest first; those without parameters are not listened to.
        before: An earlier fit: where little has come since, its hyperparameters are kept.

    Returns:
        The model; None while there are too few whole peaks.
    """
    rows = [peak for peak in peaks if peak.params is not None]
    whole = [row for row in rows if not row.censored]
    if len(whole) < model.LEAST_TRIALS:
        return None
    known = [row.overhead_bytes for row in whole if row.overhead_bytes is not None]
    theta = before.fit.theta if before is not None and _is_little_news(before, len(whole)) else None
    if known:
        overhead_bytes = max(known[-20:])
        fit = model.fit(rows, overhead_bytes, theta=theta)
    else:
        fit, overhead_bytes = _best(rows, min(row.peak_bytes for row in whole), before, theta)
    return None if fit is None else _learned(fit, overhead_bytes)


def _best(
    rows: Sequence[PastPeak], smallest_bytes: int, before: Learned | None, theta: Array | None
) -> tuple[model.Fit | None, int]:
    """Fit with the overhead that predicts best; with the last one where hyperparameters are kept too."""
    if theta is not None and before is not None:
        return model.fit(rows, before.overhead_bytes, theta=theta), before.overhead_bytes
    best: tuple[float, model.Fit | None, int] = (math.inf, None, 0)
    for part in _OVERHEAD_PARTS:
        overhead_bytes = int(part * smallest_bytes)
        # The first one's hyperparameters do for the choice; finding them takes a hundred times as long.
        fit = model.fit(rows, overhead_bytes, theta=None if best[1] is None else best[1].theta)
        if fit is not None:
            error = float(np.mean(np.abs(_relative_errors(fit, overhead_bytes))))
            if error < best[0]:
                best = error, fit, overhead_bytes
    return model.fit(rows, best[2]), best[2]


def _is_little_news(before: Learned, trials: int) -> bool:
    fitted = before.quality.trials
    return fitted >= 20 and fitted <= trials < fitted * 1.1


def _learned(fit: model.Fit, overhead_bytes: int) -> Learned:
    spreads = min(conformal(fit.scores, LEVEL), 8.0)
    found = effects(fit)
    whole = fit.whole
    relative = _relative_errors(fit, overhead_bytes)
    deviations = fit.errors / np.where(fit.scores == 0, 1.0, fit.scores)
    under = float(np.mean(fit.errors > _margin(spreads * np.abs(deviations), whole)))
    quality = Quality(whole, len(fit.rows) - whole, float(np.median(np.abs(relative))), under)
    learned = Learned(fit, overhead_bytes, spreads, found, directions(found), quality, 0)
    middle, spread = fit.predict(fit.inputs[:whole])
    least = float(np.min(middle + _margin(spreads * spread, whole)))
    return replace(learned, smallest_bytes=overhead_bytes + _bytes(least))


def _margin(wished: Any, trials: int) -> Any:
    """Return the margin as a logarithm, for one that its errors ask for: not too small while trials are few."""
    return np.minimum(np.maximum(wished, _least_margin(trials)), _MOST_MARGIN)


def _least_margin(trials: int) -> float:
    return math.log(1 + max(_LEAST_MARGIN, _FEW_MARGIN / trials))


def _relative_errors(fit: model.Fit, overhead_bytes: int) -> Array:
    """Return errors of leave-one-out predictions, as parts of the peaks they are of."""
    target = fit.targets[: fit.whole]
    peaks = np.exp(target) - model.OFFSET_BYTES + overhead_bytes
    found: Array = (np.exp(target - fit.errors) - np.exp(target)) / peaks
    return found


def _bytes(logarithm: float) -> int:
    return max(int(math.exp(min(logarithm, 60.0))) - model.OFFSET_BYTES, 0)
