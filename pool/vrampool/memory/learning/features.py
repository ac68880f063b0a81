"""Parameters as columns of numbers, fit for a regression on the logarithm of memory. Pure.

Sizes multiply in memory, so positive numbers become logarithms, whether they were drawn from a range or picked from a
list. What is no number gets a column for each of its values; what a trial may lack (a conditional parameter) gets a
column that says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: How memory usually grows with a parameter of such a name: the exponent that is believed while trials are few
#: (`research/facts.md` section 5 declares the same). Any other name: it is not believed to matter until it shows.
_EXPONENTS = {
    1.0: (
        "width",
        "hidden",
        "dim",
        "units",
        "channels",
        "filters",
        "embed",
        "embedding",
        "size",
        "resolution",
        "model",
    ),
    0.7: ("batch", "depth", "layers", "blocks", "sequence", "seq", "length", "tokens", "context", "frames"),
}
_EXPONENT_OF = {word: exponent for exponent, words in _EXPONENTS.items() for word in words}


class Kind(StrEnum):
    LOG = "log"  #: logarithm of a positive number, less its mean
    LINEAR = "linear"  #: a number, less its mean, in halves of its range
    CHOICE = "choice"  #: half where the parameter has this value, else minus half
    ABSENT = "absent"  #: half where the trial has no such parameter, else minus half


@dataclass(frozen=True)
class Column:
    """One column of the regression."""

    name: str  #: of the parameter
    kind: Kind
    centre: float = 0.0
    scale: float = 1.0
    low: float = 0.0  #: LOG, LINEAR: least value seen, as encoded
    high: float = 0.0
    choice: str = ""
    other: str = ""  #: CHOICE: the only other value seen, where one column stands for two
    exponent: float = 0.0  #: believed before anything is seen

    def encode(self, params: Mapping[str, Any]) -> float:
        if self.kind == Kind.ABSENT:
            return 0.5 if self.name not in params else -0.5
        if self.kind == Kind.CHOICE:
            # Of a trial without the parameter the column says nothing; the column for its absence does.
            return 0.0 if self.name not in params else 0.5 if _label(params[self.name]) == self.choice else -0.5
        number = _number(params.get(self.name))
        if number is None or (self.kind == Kind.LOG and number <= 0):
            return 0.0
        return ((math.log(number) if self.kind == Kind.LOG else number) - self.centre) / self.scale


@dataclass(frozen=True)
class Outside:
    """How far parameters lie outside what was seen."""

    beyond: tuple[tuple[int, float], ...] = ()  #: column and signed distance beyond its range, as encoded
    unseen: tuple[str, ...] = ()  #: parameters with a value that was never seen, or that are new
    growth: float = 0.0  #: logarithm of how much larger those of them are that had one value so far

    def __bool__(self) -> bool:
        return bool(self.beyond or self.unseen)


@dataclass(frozen=True)
class Encoder:
    """Columns made from the trials seen so far."""

    columns: tuple[Column, ...]
    constant: Mapping[str, Any]  #: parameters that had one value in every trial, and that value

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Encoder:
        """Make the columns for trials with these parameters."""
        columns: list[Column] = []
        constant: dict[str, Any] = {}
        for name in sorted({name for row in rows for name in row}):
            values = [row[name] for row in rows if name in row]
            labels = {_label(value) for value in values}
            if len(labels) == 1:
                constant[name] = values[0]
            else:
                columns += _columns(name, values)
            if len(values) < len(rows):
                columns.append(Column(name, Kind.ABSENT))
        return cls(tuple(columns), constant)

    def encode(self, params: Mapping[str, Any]) -> Array:
        """Return one row. Values never seen and names never heard of are encoded as if they said nothing."""
        return np.array([column.encode(params) for column in self.columns])

    def matrix(self, rows: Sequence[Mapping[str, Any]]) -> Array:
        """Return rows x columns."""
        return np.array([self.encode(row) for row in rows]).reshape(len(rows), len(self.columns))

    @property
    def exponents(self) -> Array:
        return np.array([column.exponent for column in self.columns])

    def outside(self, params: Mapping[str, Any]) -> Outside:
        """Say where parameters lie outside what was seen."""
        beyond = []
        numeric = set()
        for index, column in enumerate(self.columns):
            if column.kind not in (Kind.LOG, Kind.LINEAR) or _number(params.get(column.name)) is None:
                continue
            numeric.add(column.name)
            value = column.encode(params)
            if value > column.high or value < column.low:
                beyond.append((index, value - column.high if value > column.high else value - column.low))
        choices: dict[str, set[str]] = {}
        for column in self.columns:
            choices.setdefault(column.name, set())
            if column.kind == Kind.CHOICE:
                choices[column.name] |= {column.choice, column.other}
        unseen, growth = [], 0.0
        for name, value in params.items():
            if name in self.constant:
                known = _label(value) == _label(self.constant[name])
                growth += _growth(self.constant[name], value)
            else:
                known = name in numeric or _label(value) in choices.get(name, ())
            if not known:
                unseen.append(name)
        return Outside(tuple(beyond), tuple(unseen), growth)


def _growth(before: Any, now: Any) -> float:
    old, new = _number(before), _number(now)
    return math.log(new / old) if old is not None and new is not None and 0 < old < new else 0.0


def _columns(name: str, values: Sequence[Any]) -> list[Column]:
    numbers = [number for value in values if (number := _number(value)) is not None]
    others = sorted({_label(value) for value in values if _number(value) is None})
    columns = [_numeric(name, numbers)] if len(set(numbers)) > 1 else []
    if others and (len(others) > 2 or columns or numbers):
        columns += [Column(name, Kind.CHOICE, choice=label) for label in others]
    elif others:  # two values: one column tells them apart
        columns.append(Column(name, Kind.CHOICE, choice=others[-1], other=others[0]))
    return columns


def _numeric(name: str, numbers: Sequence[float]) -> Column:
    if min(numbers) > 0:
        logs = [math.log(number) for number in numbers]
        centre = sum(logs) / len(logs)
        words = name.lower().replace("-", "_").split("_")
        exponent = max((_EXPONENT_OF.get(word, 0.0) for word in words), default=0.0)
        return Column(name, Kind.LOG, centre, 1.0, min(logs) - centre, max(logs) - centre, exponent=exponent)
    centre = (min(numbers) + max(numbers)) / 2
    return Column(name, Kind.LINEAR, centre, (max(numbers) - min(numbers)) / 2, -1.0, 1.0)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _label(value: Any) -> str:
    return repr(value)
