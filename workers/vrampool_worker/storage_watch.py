"""What a worker does while its study storage does not answer: it takes nothing, and hands back what it has not begun.

Other hosts may reach the storage all the same. What runs goes on, and is told when the storage is back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from vrampool_worker.attempts import Attempt, Stage
from vrampool_worker.desk import NotOpened, Opened

if TYPE_CHECKING:
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")

Result = Opened | NotOpened | None
LOOK_S = 0.5
#: A call that takes longer counts as unanswered. A database that is restarted is back before that.
PATIENCE_S = 5.0


class StorageWatch:
    """Watches the storage lane. Only the main loop calls it.

    Args:
        loop: The worker's main loop.
    """

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop
        self.reason: str | None = None  #: why nothing is taken; None: the storage answers
        loop.every(LOOK_S, self._look)

    def _look(self) -> None:
        loop = self._loop
        silent_s = loop.desk.silent_s  # before it was opened, too
        if silent_s < PATIENCE_S:
            if self.reason is not None:
                _log.info("the study storage answers again")
                self.reason = None
                loop.ledger.pause(loop.paused)
                loop.wake()
            return
        if self.reason is None:
            self.reason = f"the study storage does not answer: {loop.desk.fault or 'no word at all'}"
            _log.warning("%s; running trials go on, none is taken", self.reason)
        loop.ledger.pause(self.reason)
        now_s = time.monotonic()
        for attempt in list(loop.attempts.values()):
            if attempt.stage is Stage.OPENING and now_s - attempt.taken_at_s >= PATIENCE_S:
                self._hand_back(attempt)

    def _hand_back(self, attempt: Attempt) -> None:
        """Let others have a trial that could not be opened."""
        loop = self._loop
        _log.warning("%s goes back: it could not be opened", attempt.label)
        attempt.dropped = "it was handed back: the study storage did not answer"
        loop.ledger.cancel(attempt.lease_id)
        del loop.attempts[attempt.lease_id]
        loop.in_queue(lambda: loop.port.put_back(attempt.job_id, attempt.lease_id), "put a job back")

    def open(self, attempt: Attempt, then: Callable[[Attempt, Result, BaseException | None], None]) -> None:
        """Open a taken trial in the storage lane; `then` hears of it, unless it was handed back meanwhile."""
        loop = self._loop

        def done(opened: Result, error: BaseException | None) -> None:
            if attempt.dropped is None:
                then(attempt, opened, error)
            else:
                self._opened_late(attempt, opened)

        loop.storage_lane.submit(lambda: loop.desk.open(attempt.ticket, lambda: attempt.dropped is None), done)

    def _opened_late(self, attempt: Attempt, opened: Result) -> None:
        """A trial that is not ours any more was opened all the same, and claimed perhaps: others may try it."""
        loop, ticket, reason = self._loop, attempt.ticket, attempt.dropped or ""
        if loop.attempts.pop(attempt.lease_id, None) is not None:  # another worker got its job
            loop.ledger.cancel(attempt.lease_id)
            loop.wake()
        if isinstance(opened, Opened):
            loop.storage_lane.submit(lambda: loop.desk.hand_back(ticket, reason), lambda _result, _error: None)
