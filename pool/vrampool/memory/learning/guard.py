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
#: How much less a prediction is trusted outside the range seen, while nothing is known of a parameter's direction.
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


def floor_of(
    fit: Fit, params: Mapping[str, Any], where: Outside, directions: Mapping[str, int | None]
) -> tuple[float, float] | None:
    """Return prediction and standard deviation for the largest trial within the range seen that is no larger.

    What it needs a trial with these parameters needs too. Where it is not known yet whether memory grows that way the
    model's own word is taken, and its doubt is doubled. None: nothing measured says what is needed.
    """
    inputs = fit.encoder.encode(params)
    if any(directions.get(name) != 0 for name in where.unseen):
        return None
    doubt = 1.0
    for index, beyond in where.beyond:
        direction = directions.get(fit.encoder.columns[index].name)
        if direction is None:
            doubt = _DOUBT
        elif beyond * direction < 0:
            return None
        else:
            inputs[index] -= beyond
    middle, spread = fit.predict(inputs[None, :])
    return float(middle[0]), float(spread[0]) * doubt


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
