"""Fits run in a thread of their own: whoever asks goes on with the last fit, and the newest peaks win."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vrampool.memory.peaks import PastPeak

if TYPE_CHECKING:
    from vrampool.memory.learning.learned import Learned

_log = logging.getLogger("vrampool.learning")

#: A model of so many trials changes little with one more. In a large pool there is always one more, and the next fit of
#: it waits for so many times what the last one took: three quarters of a core are left to the coordinator, whose
#: interpreter it shares. With 400 trials at once fits had 76 % of a core without it, and 21 % with it (docs/scale.md).
SETTLED_TRIALS = 40
_REST_FACTOR = 3.0
_MOST_REST_S = 10.0


def available() -> bool:
    """Return whether scikit-learn is here. Without it requests are the largest peak so far and a margin."""
    return importlib.util.find_spec("sklearn") is not None


class Fitter:
    """Learns from peaks without making anybody wait. One thread, started with the first wish; a daemon.

    Args:
        done: Called in that thread after each fit, to wake whoever waits for it.
    """

    def __init__(self, done: Callable[[], None] = lambda: None) -> None:
        self._done = done
        self._changed = threading.Condition()
        self._wanted: dict[str, tuple[PastPeak, ...]] = {}
        self._found: dict[str, Learned] = {}
        self._fitting: str | None = None
        self._not_before_s: dict[str, float] = {}  #: of models that rest between two fits
        self._closed = False
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Have scikit-learn imported in the background: it takes a second, and the first trials take more."""
        with self._changed:
            if not self._closed and available():
                self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="vrampool-fit", daemon=True)
            self._thread.start()

    def want(self, key: str, peaks: Sequence[PastPeak]) -> None:
        """Ask for a fit. One that was asked for before under the same key, and has not begun, is forgotten."""
        with self._changed:
            if self._closed or not available():
                return
            self._wanted.pop(key, None)  # so that whoever has waited longest is next
            self._wanted[key] = tuple(peaks)
            self._start()
            self._changed.notify_all()

    def latest(self, key: str) -> Learned | None:
        """Return the newest finished fit; None while there is none."""
        with self._changed:
            return self._found.get(key)

    def forget(self, key: str) -> None:
        """Drop everything under the key: its submission has ended."""
        with self._changed:
            self._wanted.pop(key, None)
            self._found.pop(key, None)
            self._not_before_s.pop(key, None)
            if self._fitting == key:
                self._fitting = ""  # its result is not wanted any more

    def settle(self, timeout_s: float) -> bool:
        """Wait until everything asked for is fitted, rests included; for tests and reports. False: it took longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._wanted and self._fitting is None, timeout_s)

    def close(self) -> None:
        """End the thread after the fit in hand. Not waited for: it is a daemon and holds nothing."""
        with self._changed:
            self._closed = True
            self._wanted.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            importlib.import_module("vrampool.memory.learning.learned")
        except Exception:  # told again with the first fit
            _log.debug("scikit-learn cannot be imported", exc_info=True)
        while True:
            with self._changed:
                self._fitting = None
                self._changed.notify_all()
                key = self._await_due()
                if key is None:
                    return
                peaks = self._wanted.pop(key)
                before = self._found.get(key)
                self._fitting = key
            began_s = time.monotonic()
            learned = _learn(key, peaks, before)
            ended_s = time.monotonic()
            with self._changed:
                if self._fitting == key:
                    self._not_before_s[key] = ended_s + rest_s(peaks, ended_s - began_s)
                if learned is not None and self._fitting == key:
                    self._found[key] = learned
            self._done()

    def _await_due(self) -> str | None:
        """Wait for a wish whose model does not rest, and return its key; None: the end. With the lock held."""
        while not self._closed:
            now_s = time.monotonic()
            left_s = {key: self._not_before_s.get(key, now_s) - now_s for key in self._wanted}
            due = next((key for key in self._wanted if left_s[key] <= 0), None)
            if due is not None:
                return due
            self._changed.wait(min(left_s.values(), default=None))
        return None


def rest_s(peaks: Sequence[PastPeak], took_s: float) -> float:
    """Return for how long a model is not fitted again, by what it was fitted on and how long that took."""
    settled = sum(not peak.censored for peak in peaks) >= SETTLED_TRIALS
    return min(_REST_FACTOR * took_s, _MOST_REST_S) if settled else 0.0


def _learn(key: str, peaks: Sequence[PastPeak], before: Learned | None) -> Learned | None:
    try:
        from vrampool.memory.learning.learned import learn  # a second, the first time: scikit-learn

        return learn(peaks, before=before)
    except Exception:  # a model is a convenience: without it the pool goes on as it does without scikit-learn
        _log.exception("the peaks of %s could not be learned from", key)
        return None
