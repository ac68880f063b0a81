"""The thread that learns requests, in simulated time: a fit takes as long as it takes of a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from benchmarks.simulation.outcome import Outcome
from vrampool.memory.learning.fitting import Fitter, rest_s
from vrampool.memory.learning.learned import Learned, learn
from vrampool.memory.peaks import PastPeak


class SimulatedFitter(Fitter):
    """Fits when time goes on, one at a time, the newest peaks only, and rests between, as the thread does.

    It has a core of its own.

    Args:
        later: Makes a call after so many simulated seconds.
        outcome: Counts the fits and what they take.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], None], outcome: Outcome) -> None:
        super().__init__()
        self._later = later
        self._outcome = outcome
        self._busy = False
        self._newest: dict[str, tuple[PastPeak, ...]] = {}
        self._fitted: dict[str, Learned] = {}

    def prepare(self) -> None:
        """It has imported everything."""

    def want(self, key: str, peaks: Sequence[PastPeak]) -> None:
        self._newest[key] = tuple(peaks)
        if not self._busy:
            self._busy = True
            self._later(0.0, self._fit)

    def latest(self, key: str) -> Learned | None:
        return self._fitted.get(key)

    def _fit(self) -> None:
        key = next(iter(self._newest))
        peaks = self._newest.pop(key)
        started_s = time.process_time()  # of all threads that it may use
        learned = learn(peaks, before=self._fitted.get(key))
        took_s = time.process_time() - started_s
        self._outcome.fits += 1
        self._outcome.fits_cpu_s += took_s

        def ready() -> None:
            if learned is not None:
                self._fitted[key] = learned
            self._later(rest_s(peaks, took_s), self._next)

        self._later(took_s, ready)

    def _next(self) -> None:
        self._busy = bool(self._newest)
        if self._busy:
            self._fit()
