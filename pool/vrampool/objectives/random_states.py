"""The random numbers of a sampler: which ones a trial gets follows from the sampler's seed and from a key.

A sampler travels as the user made it, its random state included. Whoever opens it draws from the start of that state,
so two openings would propose the same points: a coordinator after a restart, a second worker, the next submission on
the study. Each therefore seeds it for its own place; the same place gives the same numbers again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from optuna.samplers import BaseSampler
from optuna.samplers._lazy_random_state import LazyRandomState

#: First number of a key: who draws.
COORDINATOR, WORKER = 0, 1


class RandomStates:
    """All random states of a sampler, those of the samplers inside it too.

    Args:
        sampler: As it was opened, with nothing drawn from it yet.
    """

    def __init__(self, sampler: BaseSampler) -> None:
        self._sampler = sampler
        self._states = [part for part in parts_of(sampler) if isinstance(part, LazyRandomState)]
        # What the user's seed comes to; without a seed the operating system decides, anew in each process.
        self._bases = [int(state.rng.randint(2**32, dtype=np.uint32)) for state in self._states]

    def seed_for(self, *key: int) -> None:
        """Seed every state from the sampler's own seed and a key of numbers from 0 to 2**32 - 1."""
        for base, state in zip(self._bases, self._states, strict=True):
            state.rng.seed([base, *key])
        if not self._states:  # a user's own class, which keeps its random numbers in its own way
            self._sampler.reseed_rng()


def parts_of(value: Any, _seen: set[int] | None = None) -> Iterator[Any]:
    """Yield a sampler and everything of Optuna's that it is made of: samplers inside it, states, search spaces."""
    seen = set() if _seen is None else _seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, BaseSampler) or type(value).__module__.startswith(
        ("optuna.samplers.", "optuna.search_space.")
    ):
        yield value
        for inner in list(getattr(value, "__dict__", {}).values()):
            yield from parts_of(inner, seen)
