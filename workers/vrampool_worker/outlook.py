"""Are there trials to come that a spare could be for? The last of a study need none, and its imports take a core."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vrampool_worker.attempts import UNDER_WAY

if TYPE_CHECKING:
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")

#: What the coordinator has told is asked for again when it is older.
_FRESH_S = 1.0
#: The coordinator tells a moment after it has made a trial.
_SETTLED_S = 0.1
#: A worker on which nothing has run for so long prepares for the next study.
_IDLE_S = 2.0


class Outlook:
    """Says whether another spare may be needed. Only the main loop calls it; the queue is asked in its lane.

    Args:
        loop: The worker's main loop.
    """

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop
        self._more: bool | None = None  #: whether there are more trials than `_count`; None: nobody knows
        self._count = -1
        self._told_s = float("-inf")
        self._asked_s: float | None = None
        self._busy_s = float("-inf")
        self._woken_for_s = float("-inf")

    def needed(self, now_s: float) -> bool:
        """Whether some trial could use another spare. While that is being asked for: no, and the loop turns again."""
        running = [item for item in self._loop.attempts.values() if item.stage in UNDER_WAY]
        if not running:
            return now_s - self._busy_s >= _IDLE_S
        self._busy_s = now_s
        if any(item.spec is not None and item.spec.max_concurrent_trials is not None for item in running):
            return True  # of those that could run at once no more are told than may
        last_s = max(item.taken_at_s for item in running)
        told_s = self._told_s if self._count == len(running) else float("-inf")
        if told_s < last_s + _SETTLED_S or now_s - told_s > _FRESH_S:
            if now_s >= last_s + _SETTLED_S:
                self._ask(len(running), now_s)
            elif self._woken_for_s != last_s:
                self._woken_for_s = last_s
                self._loop.timers.at(last_s + _SETTLED_S, lambda: None)  # the loop turns then
            return False
        return self._more is not False

    def _ask(self, count: int, now_s: float) -> None:
        if self._asked_s is not None:
            return
        self._asked_s = now_s

        def told(more: bool | None, error: BaseException | None) -> None:
            if error is not None:
                _log.info("whether trials are to come is not known: %s", error)
            self._more, self._count, self._told_s, self._asked_s = more, count, now_s, None

        self._loop.queue_lane.submit(lambda: self._loop.port.more_than(count), told)
