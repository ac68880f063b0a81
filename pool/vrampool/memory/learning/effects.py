"""What a fit says of each parameter: how much memory follows it, and in which direction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vrampool.memory.learning.features import Array, Kind
from vrampool.memory.learning.model import Fit

#: With fewer trials than this no parameter is said not to matter,
TRIALS_TO_DISMISS = 20
#: and none is said to make memory grow or shrink.
TRIALS_TO_DIRECT = 8
#: A parameter that changes memory (without overhead) by less than this does not matter.
_NEGLIGIBLE = math.log(1.05)
_CLEAR = math.log(1.1)
#: So large a part of the trials seen must agree on a direction.
_AGREEING = 0.9


@dataclass(frozen=True)
class Effect:
    """What one parameter does to memory without overhead, the others staying as they are."""

    name: str
    factor: float  #: from its lowest tenth to its highest, or from its leanest value to its greediest: 1 is nothing
    share: float  #: of the changes of all parameters together; they add up to 1
    direction: int | None  #: 1: memory grows with it, -1: it shrinks, 0: it does not matter, None: not known yet


def effects(fit: Fit) -> dict[str, Effect]:
    """Return the effect of every parameter that has had more than one value, the strongest first."""
    base = fit.middle(fit.inputs)
    found: dict[str, tuple[float, float, int | None]] = {}
    for name in dict.fromkeys(column.name for column in fit.encoder.columns):
        changes = _changes(fit, name)
        if changes is None:
            continue
        stacked = np.stack(changes)
        span = float(np.mean(stacked.max(axis=0) - stacked.min(axis=0)))
        moved = float(np.mean(np.abs(stacked - base)))
        found[name] = span, moved, _direction(fit, name, stacked, span)
    total = sum(moved for _, moved, _ in found.values()) or 1.0
    result = [Effect(name, math.exp(span), moved / total, where) for name, (span, moved, where) in found.items()]
    return {effect.name: effect for effect in sorted(result, key=lambda effect: -effect.share)}


def directions(found: Mapping[str, Effect]) -> dict[str, int | None]:
    return {name: effect.direction for name, effect in found.items()}


def _changes(fit: Fit, name: str) -> list[Array] | None:
    """Return the predictions for all trials seen with the parameter set to each of a few values."""
    columns = [(index, column) for index, column in enumerate(fit.encoder.columns) if column.name == name]
    numeric = [index for index, column in columns if column.kind in (Kind.LOG, Kind.LINEAR)]
    choices = [index for index, column in columns if column.kind == Kind.CHOICE]
    settings: list[dict[int, float]] = []
    if numeric:
        values = fit.inputs[:, numeric[0]]
        off = dict.fromkeys(choices, -0.5)
        settings = [{numeric[0]: float(np.quantile(values, part)), **off} for part in (0.1, 0.5, 0.9)]
    if len(choices) == 1 and not numeric:
        settings = [{choices[0]: -0.5}, {choices[0]: 0.5}]
    elif choices:
        settings += [{index: 0.5 if index == chosen else -0.5 for index in choices} for chosen in choices]
    absent = [index for index, column in columns if column.kind == Kind.ABSENT]
    if absent:
        settings = [{**setting, absent[0]: -0.5} for setting in settings] or [{absent[0]: -0.5}]
        settings.append({**{index: 0.0 for index, _ in columns}, absent[0]: 0.5})
    found = []
    for setting in settings:
        inputs = fit.inputs.copy()
        for index, value in setting.items():
            inputs[:, index] = value
        found.append(fit.middle(inputs))
    return found or None


def _direction(fit: Fit, name: str, changes: Array, span: float) -> int | None:
    if span < _NEGLIGIBLE:
        return 0 if fit.whole >= TRIALS_TO_DISMISS else None
    kinds = {column.kind for column in fit.encoder.columns if column.name == name}
    if kinds not in ({Kind.LOG}, {Kind.LINEAR}) or fit.whole < TRIALS_TO_DIRECT or span < _CLEAR:
        return None
    rise = changes[2] - changes[0]
    if np.mean(rise > 0) >= _AGREEING:
        return 1
    return -1 if np.mean(rise < 0) >= _AGREEING else None
