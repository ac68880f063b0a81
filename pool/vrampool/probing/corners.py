"""Which trials the probe runs: from the expected worst corner one parameter at a time, learning directions. Pure.

Memory mostly grows with sizes, so the corner where every size is largest is taken for the worst. From there each
parameter goes to its other end alone: where that needs more, the direction was guessed wrong and the search goes on
from there. Where the worst does not fit, the parameter that helps most is halved between what fits and what does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vrampool.probing.space import Space, is_light

#: Smaller differences of memory are noise.
NOISE = 0.04
#: Runs kept for finding what fits, where the worst corner does not.
_KEPT = 4


@dataclass(frozen=True)
class Run:
    """One short trial of the probe. Bytes."""

    number: int  #: of the trial in the probe's study
    corner: str  #: what it was for, in words
    params: Mapping[str, Any]
    end: str  #: "fits", "does not fit", "not whole" (its peak is a lower bound), "failed"
    peak_bytes: int | None
    overhead_bytes: int | None = None
    device: str = ""  #: its name
    note: str = ""  #: why it was ended, or what failed
    run_s: float | None = None
    reports: int = 0
    steps: int = 0

    @property
    def fits(self) -> bool:
        return self.end in ("fits", "not whole")


@dataclass(frozen=True)
class Effect:
    """What one parameter does to memory, seen from the worst corner."""

    name: str
    worst: Any  #: the value that needs most
    best: Any  #: the value it was compared with that needs least
    factor: float | None  #: peak at the worst by peak at the best; None: neither is known
    rescues: bool = False  #: the worst corner does not fit, and with `best` it does


@dataclass
class Bound:
    """How far the parameter that helps most may go, all others at their worst."""

    name: str
    fits: Any  #: the furthest value that was seen to fit
    too_large: Any  #: the nearest that was seen not to


@dataclass
class Corners:
    """What was found at the corners."""

    runs: list[Run] = field(default_factory=list)
    worst: Run | None = None
    effects: list[Effect] = field(default_factory=list)
    bound: Bound | None = None
    untried: list[str] = field(default_factory=list)  #: parameters for which no run was left
    smallest: Run | None = None  #: with every size at its smallest; only where no parameter alone helps


class CornerSearch:
    """Walks the corners.

    Args:
        space: What dry trials showed; corners may add to it.
        run: Runs one trial with these parameters; None: it may not be run any more (stopped).
        limit: Runs at most.
    """

    def __init__(self, space: Space, run: Callable[[Mapping[str, Any], str], Run], limit: int) -> None:
        self._space = space
        self._run = run
        self._limit = limit
        self.found = Corners()

    def search(self) -> Corners:
        """Run the corners and return what they showed."""
        found = self.found
        corner = {name: self._space.high(name) for name in self._space.distributions}
        worst = self._at(corner, "all at their largest")
        if worst.end == "failed":
            found.worst = worst
            return found
        done: set[str] = set()
        # Asked anew each time: a corner in another branch has parameters that the last one had not.
        while open_ := [name for name in self._space.to_try() if name in worst.params and name not in done]:
            name = open_[0]
            done.add(name)
            if is_light(name) and self._left() <= 1:
                found.untried.append(name)
                continue
            worst = self._compare(name, worst)
        found.worst = worst
        if not worst.fits:
            self._find_bound(worst)
        return found

    def _left(self) -> int:
        kept = 0
        if self.found.runs and not self.found.runs[0].fits:
            kept = min(_KEPT, self._limit // 3)
        return self._limit - len(self.found.runs) - kept

    def _at(self, params: Mapping[str, Any], corner: str) -> Run:
        run = self._run(params, corner)
        self.found.runs.append(run)
        return run

    def _compare(self, name: str, worst: Run) -> Run:
        """Move one parameter away from the worst corner; return the worst corner as it is known then."""
        at = worst.params[name]
        seen = [(at, worst)]
        for value in self._space.others(name, at):
            if self._left() <= 0:
                if len(seen) == 1:
                    self.found.untried.append(name)
                    return worst
                break
            corner = {**{key: self._space.high(key) for key in self._space.distributions}, **worst.params, name: value}
            run = self._at(corner, f"{name} at {_short(value)}")
            if run.end != "failed":
                seen.append((value, run))
        if len(seen) == 1:
            return worst
        most = max(seen, key=lambda pair: _size(pair[1]) * (1 if pair[1] is worst else 1 - NOISE))
        least = min(seen, key=lambda pair: _size(pair[1]))
        rescues = least[1].fits and not most[1].fits
        factor = None
        if least[1].fits and least[1].peak_bytes and most[1].peak_bytes:
            factor = most[1].peak_bytes / least[1].peak_bytes
        self.found.effects.append(Effect(name, most[0], least[0], factor, rescues))
        return most[1]

    def _find_bound(self, worst: Run) -> None:
        """Find how far the parameter that helps most may go."""
        rescuers = [effect for effect in self.found.effects if effect.rescues]
        if not rescuers:
            ends = {name: self._space.low(name) for name in self._space.distributions if self._space.is_ordered(name)}
            ends |= {effect.name: effect.best for effect in self.found.effects if effect.factor}
            self.found.smallest = self._at({**worst.params, **ends}, "all at their smallest")
            return
        effect = max(rescuers, key=lambda item: item.factor or 0.0)
        bound = Bound(effect.name, effect.best, effect.worst)
        self.found.bound = bound
        while self._space.is_ordered(bound.name) and len(self.found.runs) < self._limit:
            value = self._space.between(bound.name, bound.fits, bound.too_large)
            if value is None:
                return
            run = self._at({**worst.params, bound.name: value}, f"{bound.name} at {_short(value)}")
            if run.end == "failed":
                return
            if run.fits:
                bound.fits = value
            else:
                bound.too_large = value


def _size(run: Run) -> float:
    # One that does not fit needs more than any that does, however early it was ended.
    return (run.peak_bytes or 0) + (0 if run.fits else 1 << 60)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
