"""A look at the storage now and then: are the trials that run here still ours, and still wanted?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vrampool.messages import EndKind
from vrampool_worker.attempts import Stage

if TYPE_CHECKING:
    from vrampool_worker.worker import WorkerLoop


class Audit:
    """Compares running trials with the storage. Only the main loop calls it; reading is done in the storage lane."""

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop

    def look(self) -> None:
        """Compare: what was cancelled is ended, what was ended from outside is dropped."""
        tickets = [
            item.ticket for item in self._loop.attempts.values() if item.stage in (Stage.AWAITING, Stage.RUNNING)
        ]
        if tickets:
            self._loop.storage_lane.submit(lambda: self._loop.desk.audit(tickets), self._on_found)

    def _on_found(self, found: Mapping[str, str] | None, error: BaseException | None) -> None:
        if error is not None or not found:
            return
        for attempt in list(self._loop.attempts.values()):
            reason = found.get(f"{attempt.ticket.submission_id}/{attempt.ticket.number}")
            if reason is None:
                continue
            if reason.startswith("lost: "):
                self._loop.runner.drop(attempt, reason.removeprefix("lost: "))
            else:
                self._loop.runner.end(attempt, EndKind.CANCELLED, reason)
