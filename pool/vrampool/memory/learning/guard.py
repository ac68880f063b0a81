"""Where a prediction is not believed as it is: outside what was seen, and by how much its errors say. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vrampool.memory.learning.features import Array, Kind, Outside
from vrampool.memory.learning.model import Fit

#: A prediction outside the range seen is raised by up to this: with less, a third of them were too low
#: (`research/facts.md` section 5, trained up to batch 64 and asked for 128 to 256).
_OUTSIDE_FACTOR = 1.5
#: How much less a prediction is trusted outside the range seen when it says that something does not fit.
_DOUBT = 2.0
#: Whole distance, as a logarithm, at which the factor is reached: twice as large as anything seen.
_FULL_DISTANCE = math.log(2)


def guarded(
    fit: Fit, params: Mapping[str, Any], where: Outside, directions: Mapping[str, int | None]
) -> tuple[float, float, float]:
    """Predict, with caution outside the range seen.

    Beyond the largest value seen memory is taken to grow at least in proportion: the prediction for the parameters
    clipped to the range, times the ratio.

    Returns:
        Logarithm of the prediction, its standard deviation, and the factor by which it is to be raised.
    """
    inputs = fit.encoder.encode(params)
    middle, spread = (float(found[0]) for found in fit.predict(inputs[None, :]))
    if not where:
        return middle, spread, 1.0
    clipped, growth, distance = inputs.copy(), where.growth, where.growth
    for index, beyond in where.beyond:
        column = fit.encoder.columns[index]
        clipped[index] -= beyond
        direction = directions.get(column.name)
        if direction == 0:
            continue
        distance += abs(beyond)
        if column.kind == Kind.LOG and beyond * (direction or 1) > 0:
            growth += abs(beyond)
    unknown = [name for name in where.unseen if directions.get(name) != 0]
    distance += _FULL_DISTANCE * len(unknown)
    cautious = float(fit.middle(clipped[None, :])[0]) + growth
    factor = 1 + (_OUTSIDE_FACTOR - 1) * min(distance / _FULL_DISTANCE, 1.0)
    return max(middle, cautious), spread, factor


def floors_of(
    fit: Fit, params: Mapping[str, Any], where: Outside, directions: Mapping[str, int | None]
) -> list[tuple[float, float]]:
    """Return what says how much a trial needs at the least: predictions with their standard deviations.

    The largest trial within the range seen that is no larger needs no more than this one. And there is the model's
    own word for the parameters as they are: outside the range its doubt is doubled. Empty: nothing measured says
    anything, for the trial is smaller than all seen, or has a value that none had.
    """
    if any(directions.get(name) != 0 for name in where.unseen):
        return []
    inputs = fit.encoder.encode(params)
    clipped, doubt, known = inputs.copy(), 1.0, True
    for index, beyond in where.beyond:
        direction = directions.get(fit.encoder.columns[index].name)
        if direction == 0:
            clipped[index] -= beyond
            continue
        if direction is not None and beyond * direction < 0:
            return []
        doubt, known = _DOUBT, known and direction is not None
        clipped[index] -= beyond
    rows = [(inputs, doubt), (clipped, 1.0)] if known and doubt > 1.0 else [(inputs if doubt > 1.0 else clipped, doubt)]
    middle, spread = fit.predict(np.array([row for row, _ in rows]))
    return [(float(m), float(s) * factor) for m, s, (_, factor) in zip(middle, spread, rows, strict=True)]


def conformal(scores: Array, level: float) -> float:
    """Return by how many of its own standard deviations a prediction must be raised to cover a new trial.

    Args:
        scores: Errors of leave-one-out predictions, in standard deviations.
        level: Part of new trials to be covered.
    """
    ordered = np.sort(scores)
    rank = math.ceil((len(ordered) + 1) * level)
    if rank <= len(ordered):
        return max(float(ordered[rank - 1]), 1.0)
    # Too few to know that quantile: the largest error seen, and a little more.
    return max(1.25 * float(ordered[-1]), 2.0)
