"""How a trial is asked to stop: one exception in its main thread, never in the middle of a frame."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """Raised once in the objective when the trial is asked to end. No `Exception`: retry loops let it by."""


class StopGate:
    """Turns SIGTERM into `Stopped`. While the gate is held the exception waits: half a frame would garble the rest."""

    def __init__(self) -> None:
        self.asked = False
        self._raised = False
        self._held = 0

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._on_term)
        os.register_at_fork(after_in_child=self._let_go)

    def _let_go(self) -> None:
        # A process that the objective forks is not the trial. `multiprocessing` ends its workers with SIGTERM, and one
        # that waits for a lock at that moment would never come to a handler written in Python.
        if signal.getsignal(signal.SIGTERM) == self._on_term:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def close(self) -> None:
        """Raise nothing from now on: the objective has ended."""
        self._raised = True

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if not self._held:
            self._raise_once()

    def _raise_once(self) -> None:
        if not self._raised:
            self._raised = True
            raise Stopped("asked to stop")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the exception back while this lasts. Signals reach the main thread alone; others need no gate."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if self.asked and not self._held:
                self._raise_once()
