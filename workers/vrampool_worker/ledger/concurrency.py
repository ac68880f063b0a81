"""How many trials at once a device gains from: found while they run, not set. Pure; the ledger asks it.

Memory says how many trials fit, this says how many help. Three things stop one more from starting:

- the multiprocessors are busy already (GPM utilisation, Hopper and later);
- when the last ones were added, the device as a whole did no more (`throughput`);
- the last change is not measured yet.

It starts with a few, doubles as long as that pays, and looks again from time to time: upwards with one more trial,
downwards with one less. What it finds it keeps to for a while, so that noise does not move it back and forth. A trial
that runs is never stopped for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from vrampool_worker.ledger.throughput import READINGS, Comparison, Meter

#: So many trials share a card before one more gains nothing, in most mixes that were measured.
START = 4
#: Under MPS they do not take turns: eight small ones ran 7.3 times as fast as one, against 3.6 times in time slices.
START_MPS = 8
#: Multiprocessors that are busier than this have no room for one more trial that takes turns with the others. Under
#: MPS trials run side by side, and large ones at 88 % still gained 18 %.
BUSY = 0.85
BUSY_MPS = 0.97
#: Once called busy, a card stays so until it falls by this much.
_BUSY_SLACK = 0.05
#: Twice the trials must do at least 5 % more: a smaller gain is not worth what each of them loses. A small step up must
#: show a little more than that, for what is measured of it is less certain.
_LEAST_ELASTICITY = 0.07
_LEAST_ELASTICITY_UP = 0.15
#: Pause before the next look upwards; doubled each time it finds nothing.
_PAUSE_S = 60.0
_LONGEST_PAUSE_S = 240.0
#: Pause before the next look downwards, and how long a place is left empty for it.
_REVIEW_S = 120.0
_REVIEW_LIMIT_S = 20.0
#: A study that has not run for so long is new again.
_FORGOTTEN_S = 120.0
#: A step up that could not be judged within this time is taken back.
_UNJUDGED_S = 300.0
#: Where nothing tells how fast trials are, memory alone decides after so long.
_NOTHING_TOLD_S = 5.0


class Concurrency:
    """The number of trials at once that a device gains from.

    Args:
        most: Trials at once in any case.
        start: Trials at once before anything is measured, where they take turns.
        busy: Above this mean share of busy multiprocessors nothing is started, where they take turns.
    """

    def __init__(self, most: int, *, start: int = START, busy: float = BUSY) -> None:
        self._most = most
        self._in_turns = min(start, most), busy
        self._start, self.busy_bound = self._in_turns
        self.limit = self._start  #: trials at once, as found so far
        self._meter = Meter()
        self._readings: deque[float] = deque(maxlen=READINGS)
        self._mean = 0.0  #: of the last full round of readings
        self._busy: bool | None = False  #: None: not known yet of the trials that run now
        self._work_seen_s: dict[str, float] = {}
        self._reset()

    def _reset(self) -> None:
        self.limit = self._start
        self._busy = False if self._busy is False else None  # that trials of another study filled the card is no news
        self._doubling = True
        self._failures = 0
        self._proven_s: dict[int, float] = {}  #: when so many at once were seen to do more than fewer
        self._probe_at_s = 0.0
        self._review_at_s = 0.0
        self._review_pause_s = _REVIEW_S
        self._reviewing = False
        self._reviewing_since_s: float | None = None
        self._stopped_by: Comparison | None = None

    def run_side_by_side(self, yes: bool) -> None:
        """Say whether trials run side by side, under MPS, or take turns; what was found so far is of the other way."""
        self._start, self.busy_bound = (min(START_MPS, self._most), BUSY_MPS) if yes else self._in_turns
        self._reset()
        self._meter.forget()

    # -- what is learned ------------------------------------------------------------------------------------------

    def progressed(self, name: str, count: int, now_s: float) -> None:
        """Take note of what a trial has counted so far: optimizer steps, or reports."""
        self._meter.progressed(name, count, now_s)

    def observe(self, running: Mapping[str, str], utilisation: float | None, now_s: float) -> None:
        """Take note of a reading of the device.

        Args:
            running: What each trial works on (its study), by its name. Other work makes everything new.
            utilisation: Share of busy multiprocessors since the last reading, 0 to 1; None: not told.
            now_s: Now.
        """
        if self._is_new(set(running.values()), now_s):
            self._reset()
            self._meter.forget()
        self._note_utilisation(utilisation, bool(running))
        found = self._meter.observe(set(running), utilisation, now_s)
        if found is not None:
            self._learn(found, now_s)
        self._look_further(now_s)

    def _is_new(self, work: set[str], now_s: float) -> bool:
        """Take note of the studies at work; say whether one is among them that was not seen lately."""
        self._work_seen_s = {name: at_s for name, at_s in self._work_seen_s.items() if now_s - at_s <= _FORGOTTEN_S}
        new = not work <= self._work_seen_s.keys()
        self._work_seen_s |= dict.fromkeys(work, now_s)
        return new

    def _note_utilisation(self, utilisation: float | None, anything_runs: bool) -> None:
        if utilisation is None:
            return
        if not anything_runs:  # a stranger's work, or the end of one of ours: the next trial is judged by its own
            self._readings.clear()
            # Until then it is taken for like the last one: large trials that run one after the other leave a gap each.
            self._busy = self._busy or None
            return
        self._readings.append(utilisation)
        if len(self._readings) == READINGS:
            self._mean = sum(self._readings) / READINGS
            self._busy = self._mean >= self.busy_bound - (_BUSY_SLACK if self._busy else 0.0)

    def _learn(self, found: Comparison, now_s: float) -> None:
        if found.more > self.limit:
            return  # trials from before the limit fell are ending; that it fell was decided on better grounds
        review = self._end_review()
        up = not review and not self._doubling
        if found.elasticity < (_LEAST_ELASTICITY_UP if up else _LEAST_ELASTICITY):
            self._stopped_by = found
            self._fall(found.fewer, now_s)
        elif found.more == self.limit:
            known = found.more in self._proven_s
            self._proven_s[found.more] = now_s
            self._stopped_by = None
            if review or known:
                self._review_pause_s = min(2 * self._review_pause_s, 4 * _REVIEW_S)
            else:
                self._failures = max(0, self._failures - 1)
                self._probe_at_s = now_s if self._doubling else now_s + _PAUSE_S
            self._review_at_s = now_s + self._review_pause_s

    def _fall(self, level: int, now_s: float) -> None:
        """Go down to fewer trials. Unless they have shown their worth they may be too many as well."""
        self.limit = level
        self._doubling = False
        self._probe_at_s = now_s + min(_PAUSE_S * 2**self._failures, _LONGEST_PAUSE_S)
        self._failures += 1
        self._review_pause_s = _REVIEW_S
        proven = now_s - self._proven_s.get(level, -_FORGOTTEN_S) < _FORGOTTEN_S
        self._review_at_s = now_s + _REVIEW_S if proven else now_s

    def _end_review(self) -> bool:
        was, self._reviewing, self._reviewing_since_s = self._reviewing, False, None
        return was

    def _look_further(self, now_s: float) -> None:
        """Try one more, or leave a place empty for a moment, when it is time for that."""
        level, limit = self._meter.level, self.limit
        self._review(level, now_s)
        if level != limit or limit >= self._most:
            return
        waits_s = self._meter.uncompared_for_s(now_s)
        if waits_s and (level > self._start or not self._doubling or self._meter.comparable):
            if waits_s > _UNJUDGED_S and self._meter.compared_with < limit:
                self._fall(self._meter.compared_with, now_s)
        elif self._meter.silent_for_s(now_s) >= _NOTHING_TOLD_S:
            self.limit = self._most
        elif self._meter.measured and now_s >= self._probe_at_s and self._busy is False:
            self.limit = min(self._most, limit * 2 if self._doubling else limit + max(1, limit // 4))
            self._end_review()
            self._review_at_s = now_s + self._review_pause_s

    def _review(self, level: int, now_s: float) -> None:
        """See whether one less does as much: the next trial that ends leaves its place empty until that is known."""
        if not self._reviewing:
            due = now_s >= self._review_at_s and level == self.limit > 1
            self._reviewing = due and self._meter.was_measured_at(level, now_s)
        elif level < self.limit and self._reviewing_since_s is None:
            self._reviewing_since_s = now_s
        if self._reviewing_since_s is not None and now_s - self._reviewing_since_s > _REVIEW_LIMIT_S:
            self._end_review()
            self._review_at_s = now_s + self._review_pause_s

    # -- what is said ---------------------------------------------------------------------------------------------

    def obstacle(self, running: int) -> str:
        """Say why one more trial than those that run does not start; empty when it may, as the first one always may."""
        if running < 1:
            return ""
        waits = f"{running} running; {_ordinal(running + 1)} waits"
        if self._busy:
            return f"{waits}: SM {100 * self._mean:.0f} % busy"
        if running >= self.limit:
            stopped = self._stopped_by
            if stopped is None:
                return f"{waits}: what {running} at once gain is being measured" if self.limit < self._most else ""
            change = 100 * (stopped.gain - 1)
            return f"{waits}: {stopped.more} at once instead of {stopped.fewer} made {change:+.0f} % {stopped.unit}"
        if self._reviewing and running == self.limit - 1:
            return f"{waits} for some seconds: whether {self.limit} at once still gain is being measured"
        return ""


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
