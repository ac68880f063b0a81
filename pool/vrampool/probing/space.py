"""The search space as dry trials showed it, and the values that its parameters take at corners. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

#: Words in names of parameters that memory mostly follows, the strongest first; they are tried first.
_HEAVY = (
    ("batch", "bs"),
    ("length", "seq", "sequence", "tokens", "context", "frames", "resolution", "image", "size"),
    ("width", "hidden", "dim", "units", "channels", "filters", "embed", "embedding", "model"),
    ("depth", "layers", "blocks", "heads", "experts"),
)
#: Words in names of parameters that memory hardly ever follows; they are tried last.
_LIGHT = frozenset(
    {"lr", "rate", "learning", "dropout", "decay", "momentum", "alpha", "beta", "beta1", "beta2", "gamma", "eps"}
    | {"epsilon", "seed", "warmup", "smoothing"}
)
_BATCH = frozenset(("batch", "bs", "batchsize"))


class Space:
    """What is known of a search space: parameters in the order in which they were first suggested."""

    def __init__(self) -> None:
        self.distributions: dict[str, BaseDistribution] = {}

    def see(self, distributions: Mapping[str, BaseDistribution]) -> list[str]:
        """Take in what a trial suggested; return the names that are new."""
        new = [name for name in distributions if name not in self.distributions]
        self.distributions |= {name: distributions[name] for name in new}
        return new

    def to_try(self) -> list[str]:
        """Return the parameters that have more than one value, those that are likely to drive memory first."""
        names = [name for name, kind in self.distributions.items() if not kind.single()]
        return sorted(names, key=rank)

    def is_ordered(self, name: str) -> bool:
        """Return whether the parameter's values are numbers, whether drawn or chosen from a list."""
        kind = self.distributions[name]
        return not isinstance(kind, CategoricalDistribution) or all(_is_number(value) for value in kind.choices)

    def high(self, name: str) -> Any:
        """Return the value at which most memory is expected: the largest, or the first of words."""
        return self._ends(name)[1]

    def low(self, name: str) -> Any:
        """Return the value at which least memory is expected."""
        return self._ends(name)[0]

    def others(self, name: str, value: Any) -> list[Any]:
        """Return the values to compare `value` with: the other end, or each other choice."""
        kind = self.distributions[name]
        if self.is_ordered(name):
            low, high = self._ends(name)
            return [low] if value == high else [high]
        assert isinstance(kind, CategoricalDistribution)
        return [choice for choice in kind.choices if choice != value or type(choice) is not type(value)]

    def between(self, name: str, fits: Any, too_large: Any) -> Any | None:
        """Return a value about in the middle of two, or None where there is none that is worth a trial."""
        kind = self.distributions[name]
        if isinstance(kind, CategoricalDistribution):
            least, most = sorted((fits, too_large))
            inner = [value for value in _numbers(kind) if least < value < most]
            return inner[len(inner) // 2] if inner else None
        if max(abs(fits), abs(too_large)) <= 1.15 * min(abs(fits), abs(too_large)):
            return None  # nearer is no better advice
        middle = math.sqrt(fits * too_large) if fits > 0 and too_large > 0 else (fits + too_large) / 2
        if isinstance(kind, IntDistribution):
            whole = kind.low + round((middle - kind.low) / kind.step) * kind.step
            return whole if min(fits, too_large) < whole < max(fits, too_large) else None
        assert isinstance(kind, FloatDistribution)
        if kind.step is not None:
            middle = kind.low + round((middle - kind.low) / kind.step) * kind.step
        return middle if min(fits, too_large) < middle < max(fits, too_large) else None

    def _ends(self, name: str) -> tuple[Any, Any]:
        kind = self.distributions[name]
        if isinstance(kind, CategoricalDistribution):
            if self.is_ordered(name):
                return _numbers(kind)[0], _numbers(kind)[-1]
            return kind.choices[-1], kind.choices[0]
        assert isinstance(kind, (FloatDistribution, IntDistribution))
        return kind.low, kind.high


def rank(name: str) -> int:
    """Return a small number for names of parameters that memory mostly follows, a large one for others."""
    words = _words(name)
    for place, heavy in enumerate(_HEAVY):
        if words & set(heavy):
            return place
    return len(_HEAVY) + (1 if words & _LIGHT else 0)


def is_batch(name: str) -> bool:
    """Return whether a parameter is a batch size by its name."""
    return bool(_words(name) & _BATCH)


def is_light(name: str) -> bool:
    """Return whether memory hardly ever follows a parameter of this name."""
    return rank(name) > len(_HEAVY)


def _words(name: str) -> set[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return {word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word}


def _numbers(kind: CategoricalDistribution) -> list[Any]:
    values: list[Any] = [value for value in kind.choices if _is_number(value)]
    return sorted(values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
