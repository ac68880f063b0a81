"""Spares: children spawned ahead of need, with their imports done, each for exactly one trial."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from vrampool_worker.children.child import Child

_log = logging.getLogger("vrampool.worker")

#: A spare that dies so often before it was used says that the environment is broken.
_FAILURES_TO_PAUSE = 3
_PAUSE_S = 30.0


class SpareShelf:
    """Keeps some children waiting.

    Args:
        spawn: Starts a child; called from the main loop only.
        watch: Registers a child's descriptors with the loop's selector.
        count: How many wait.
    """

    def __init__(self, spawn: Callable[[], Child], watch: Callable[[Child], None], count: int) -> None:
        self._spawn = spawn
        self._watch = watch
        self._count = count
        self._waiting: list[Child] = []
        self._failures = 0
        self._paused_until_s = 0.0

    def take(self) -> Child:
        """Return a child for a trial: one that is ready, else one that is on its way, else a new one."""
        for child in self._waiting:
            if child.ready:
                self._waiting.remove(child)
                self._failures = 0
                return child
        if self._waiting:
            return self._waiting.pop(0)
        return self._start()

    def fill(self, now_s: float) -> None:
        """Spawn what is missing. One at a time: imports of several would slow the trials that run."""
        if now_s < self._paused_until_s or any(not child.ready for child in self._waiting):
            return
        if len(self._waiting) < self._count:
            self._waiting.append(self._start())

    def gone(self, child: Child) -> bool:
        """Note that a child ended. True when it was a spare."""
        if child not in self._waiting:
            return False
        self._waiting.remove(child)
        if not self._count:
            return True  # the shelf is closing: it was told to end
        self._failures += 1
        _log.warning("a spare process ended before it was used: %s", child.log_tail() or "it said nothing")
        if self._failures >= _FAILURES_TO_PAUSE:
            self._paused_until_s = time.monotonic() + _PAUSE_S
        return True

    def holds(self, child: Child) -> bool:
        return child in self._waiting

    def close(self) -> None:
        """End all that wait."""
        self._count = 0
        for child in self._waiting:
            child.kill()

    def _start(self) -> Child:
        child = self._spawn()
        self._watch(child)
        return child
