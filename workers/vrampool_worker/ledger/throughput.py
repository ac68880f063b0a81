"""What a device gains from one more trial, measured on those that run: pure, it is told everything.

Trials of a search are of all sizes, so their steps cannot be added up. What can be compared is one trial with itself:
how fast it is beside three others, and beside seven. From K trials to L, each then r times as fast, the device does
r * L / K as much. Where no trial counts anything the device's utilisation is compared, and where that is not told
either, trials ended per second.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

#: A rate over a shorter time, or over fewer stretches of time, is noise.
_SHORTEST_S = 2.0
_FEWEST_STRETCHES = 2
#: Counts of one trial are kept for stretches of at least so long, and so many of them: a rate is of the last seconds.
_STRETCH_S = 0.5
_STRETCHES = 16
#: A trial that comes in the place of another lets the others be faster for a moment.
_LULL_S = 1.0
#: A number of trials that was seen in one of so many readings is held for that long: places are filled again at once.
_GAP_READINGS = 4
#: Above this share of time in which a place is empty or its trial begins, trials that end are counted instead.
_CHOPPY = 0.4
_CHOPPY_AFTER_S = 4.0
#: So many readings make a mean of the utilisation; one alone swings with the trials' phases.
READINGS = 6
#: A new trial that counts nothing for so long is taken for one that never will, or that is under way all the same,
_SILENT_S = 10.0
#: where others count, later: it may load its data.
_SLOW_START_S = 30.0
#: What trials count says more than how busy the device is, and is waited for so long where they count.
_COUNTS_FIRST_S = 8.0
#: Trials that must have ended for a rate of them; and so many for each that runs at once.
_ENDED = 16
_ENDED_PER_TRIAL = 4
#: What was measured longer ago says nothing of now.
_OLD_S = 600.0
#: A small step up or down makes a small difference, and is measured for longer.
_SMALL_STEP = 1.6
_SMALL_STEP_S = 5.0


@dataclass(frozen=True)
class Comparison:
    """What a device did with more trials at once, against fewer."""

    fewer: int
    more: int
    gain: float  #: total throughput with more of them, as a multiple of that with fewer
    unit: str  #: "steps per second", "SM utilisation", "trials per second"

    @property
    def elasticity(self) -> float:
        """Return 1 where each further trial adds as much as the first, 0 where it adds nothing, less where it harms."""
        return math.log(max(self.gain, 1e-9)) / math.log(self.more / self.fewer)


class _Window:
    """What one trial has counted lately: stretches of time, and what it counted in each."""

    def __init__(self) -> None:
        self._stretches: deque[tuple[float, int]] = deque(maxlen=_STRETCHES)
        self._last: tuple[float, int] | None = None

    def add(self, at_s: float, count: int) -> None:
        if self._last is None:
            self._last = (at_s, count)
        elif at_s - self._last[0] >= _STRETCH_S:
            self._stretches.append((at_s - self._last[0], count - self._last[1]))
            self._last = (at_s, count)

    def interrupt(self) -> None:
        """Leave out what comes until the next count, and what came just before: something else has changed."""
        if self._last is not None and self._stretches:
            self._stretches.pop()
        self._last = None

    def rate(self, shortest_s: float = _SHORTEST_S) -> float | None:
        lasted_s = sum(stretch[0] for stretch in self._stretches)
        counted = sum(stretch[1] for stretch in self._stretches)
        enough = len(self._stretches) >= _FEWEST_STRETCHES and lasted_s >= shortest_s
        return counted / lasted_s if enough and counted > 0 else None


@dataclass
class _Phase:
    """A time during which the same number of trials ran."""

    level: int
    began_s: float
    newcomers: dict[str, float]  #: trials that are not under way yet, and since when: they disturb what is measured
    ready_s: float | None = None  #: since when all are
    latest_s: float = 0.0
    windows: dict[str, _Window] = field(default_factory=dict)
    utilisation: deque[float] = field(default_factory=lambda: deque(maxlen=4 * READINGS))
    ended: int = 0
    disturbed_s: float = 0.0  #: time in which a place was empty, or its trial not under way
    compared: bool = False

    def rates(self, shortest_s: float = _SHORTEST_S) -> dict[str, float]:
        return {name: rate for name, window in self.windows.items() if (rate := window.rate(shortest_s)) is not None}

    def busy(self, fewest: int = READINGS) -> float | None:
        seen = self.utilisation
        return sum(seen) / len(seen) if len(seen) >= fewest else None

    @property
    def choppy(self) -> bool:
        """Say whether trials are so short that what lies between them counts as much as how fast they are."""
        return self.disturbed_s > _CHOPPY * (self.latest_s - self.began_s)

    def ended_per_s(self, times: int = 1) -> float | None:
        if self.ready_s is None or self.ended < times * max(_ENDED, _ENDED_PER_TRIAL * self.level):
            return None
        return self.ended / max(self.latest_s - self.ready_s, _SHORTEST_S)

    @property
    def measured(self) -> bool:
        return bool(self.rates()) or self.busy() is not None or self.ended_per_s() is not None


class Meter:
    """Watches the trials of one device, and compares phases of more and of fewer."""

    def __init__(self) -> None:
        self._phase = _Phase(0, 0.0, {})
        self._reference: _Phase | None = None
        self._names: set[str] = set()
        self._sizes: deque[int] = deque([0], maxlen=_GAP_READINGS)
        self._counted: set[str] = set()  #: trials that have counted something, ever
        self._any_counts = False

    @property
    def level(self) -> int:
        """Return how many trials run at once; a short gap between two trials is none."""
        return self._phase.level

    @property
    def measured(self) -> bool:
        """Say whether the present phase can be compared with a later one."""
        return self._phase.ready_s is not None and self._phase.measured

    def was_measured_at(self, level: int, now_s: float) -> bool:
        """Say whether there is a recent measure of so many trials at once to compare with."""
        seen = [self._phase] if self.measured else []
        seen += [self._reference] if self._reference is not None else []
        return any(phase.level == level and now_s - phase.latest_s <= _OLD_S for phase in seen)

    def uncompared_for_s(self, now_s: float) -> float:
        """Return for how long the present phase awaits its comparison with an earlier one."""
        phase, earlier = self._phase, self._reference
        if earlier is None or phase.compared or not earlier.level or earlier.level == phase.level:
            return 0.0
        return now_s - phase.began_s

    @property
    def comparable(self) -> bool:
        """Say whether trials run that were measured in the earlier phase too."""
        return self._reference is not None and bool(self._reference.rates().keys() & self._names)

    @property
    def compared_with(self) -> int:
        """Return how many trials at once the present phase is compared with; 0: with none."""
        return self._reference.level if self._reference is not None else 0

    def silent_for_s(self, now_s: float) -> float:
        """Return for how long the present phase could have been measured, and nothing told of it."""
        phase = self._phase
        return 0.0 if phase.ready_s is None or phase.measured or self._any_counts else now_s - phase.ready_s

    def forget(self) -> None:
        """Compare nothing with what was: other work has come."""
        self._reference = None
        self._any_counts = False

    def progressed(self, name: str, count: int, now_s: float) -> None:
        """Take note of what a trial has counted so far: optimizer steps, or reports."""
        self._counted.add(name)
        self._any_counts = True
        self._phase.newcomers.pop(name, None)
        phase = self._phase
        if phase.ready_s is not None and not phase.newcomers and len(self._names) == phase.level:
            phase.windows.setdefault(name, _Window()).add(now_s, count)

    def observe(self, running: set[str], utilisation: float | None, now_s: float) -> Comparison | None:
        """Take note of what runs now; return what two phases have shown, if that is new."""
        gone = self._names - running
        self._sizes.append(len(running))
        level = max(self._sizes)
        if level != self._phase.level:
            if self._phase.ready_s is not None and self._phase.measured:
                self._reference = self._phase
            self._phase = _Phase(level, now_s, dict.fromkeys(running - self._counted, now_s))
        elif running != self._names:
            self._phase.newcomers |= dict.fromkeys(running - self._names, now_s)
            for window in self._phase.windows.values():
                window.interrupt()
        self._names = set(running)
        self._counted &= running
        phase = self._phase
        phase.ended += len(gone) if phase.ready_s is not None else 0
        if phase.newcomers or len(running) != level:
            phase.disturbed_s += now_s - max(phase.latest_s, phase.began_s)
        phase.latest_s = now_s
        self._settle(phase, now_s)
        calm = all(now_s - since_s > _LULL_S for since_s in phase.newcomers.values())
        if utilisation is not None and calm and phase.ready_s is not None and now_s > phase.ready_s:
            phase.utilisation.append(utilisation)
        return self._compare(phase, now_s)

    def _settle(self, phase: _Phase, now_s: float) -> None:
        """Begin to measure when all trials of the phase are under way."""
        patience_s = _SLOW_START_S if self._any_counts else _SILENT_S
        phase.newcomers = {
            name: since_s
            for name, since_s in phase.newcomers.items()
            if name in self._names and now_s - since_s < patience_s
        }
        # Those that come later disturb what is measured, but where trials are short there always are some.
        if phase.ready_s is None and all(since_s > phase.began_s for since_s in phase.newcomers.values()):
            phase.ready_s = now_s

    def _compare(self, phase: _Phase, now_s: float) -> Comparison | None:
        earlier = self._reference
        if earlier is None or phase.compared or phase.level == earlier.level or not phase.level or not earlier.level:
            return None
        if now_s - earlier.latest_s > _OLD_S:
            self._reference = None
            return None
        fewer, more = sorted((earlier.level, phase.level))
        small = more / fewer < _SMALL_STEP
        choppy = earlier.choppy or phase.choppy
        if now_s - phase.began_s < _CHOPPY_AFTER_S and phase.disturbed_s:
            return None  # whether it is choppy is not clear yet
        found = None if choppy else _by_rates(earlier, phase, small)
        if found is None and (choppy or not self._any_counts or now_s - (phase.ready_s or now_s) >= _COUNTS_FIRST_S):
            found = _by_sums(earlier, phase, small, choppy)
        if found is None:
            return None
        phase.compared = True
        ratio, unit = found  # of the later phase's total to the earlier one's
        return Comparison(fewer, more, ratio if phase.level == more else 1 / ratio, unit)


def _by_rates(earlier: _Phase, phase: _Phase, small: bool) -> tuple[float, str] | None:
    """Compare trials that ran in both phases with themselves; at least half of the smaller phase must be among them."""
    shortest_s = _SMALL_STEP_S if small else _SHORTEST_S
    before, now = earlier.rates(), phase.rates(shortest_s)
    both = before.keys() & now.keys()
    if not both or 2 * len(both) < min(earlier.level, phase.level):
        return None
    if any(name in phase.windows and name not in now for name in before):
        return None  # those that are still to come would make the mean a better one
    slower = math.exp(sum(math.log(now[name] / before[name]) for name in both) / len(both))
    return slower * phase.level / earlier.level, "steps per second"


def _by_sums(earlier: _Phase, phase: _Phase, small: bool, choppy: bool) -> tuple[float, str] | None:
    before, now = earlier.ended_per_s(), phase.ended_per_s(2 if small else 1)
    if before is not None and now is not None:
        return now / before, "trials per second"
    if choppy:
        return None  # the utilisation leaves out the moments at which a trial begins
    before, now = earlier.busy(), phase.busy(2 * READINGS if small else READINGS)
    if before is not None and now is not None and min(before, now) > 0.01:
        return now / before, "SM utilisation"
    return None
