"""Submissions that cannot be tended: refused with a reason, their trials ended, then closed."""

from __future__ import annotations

import logging
from typing import Any

from optuna.trial import FrozenTrial

from vrampool.coordinator.remains import Remains
from vrampool.queueing import Events, JobQueue
from vrampool.storage import Catalog, SubmissionRow, SubmissionState

_log = logging.getLogger("vrampool.coordinator")

#: States of a submission that is not over.
LIVE_STATES = (SubmissionState.OPEN, SubmissionState.STOPPING, SubmissionState.CANCELLING, SubmissionState.FAILING)


class RefusedSubmissions:
    """The refused submissions whose trials have not all ended.

    Args:
        storage: The pool's storage.
        catalog: Its submissions.
        queue: The job queue.
        events: Tells of each end.
    """

    def __init__(self, storage: Any, catalog: Catalog, queue: JobQueue, events: Events) -> None:
        self._storage = storage
        self._catalog = catalog
        self._queue = queue
        self._events = events
        self._remains: dict[str, Remains] = {}

    def __contains__(self, submission_id: str) -> bool:
        return submission_id in self._remains

    def __len__(self) -> int:
        return len(self._remains)

    def refuse(self, row: SubmissionRow, error: Exception) -> None:
        """Refuse a submission for what went wrong; a KeyError means that its study is gone."""
        why = f"there is no study {row.study_name!r} any more" if isinstance(error, KeyError) else str(error)
        reason = f"refused: {why}"
        _log.error("submission %s is %s", row.id, reason)
        self._catalog.set_submission_state(row.id, SubmissionState.FAILING, reason, expected=LIVE_STATES)
        self._remains[row.id] = Remains(self._storage, self._queue, row.id, reason)

    def clear(self) -> None:
        """End what waits of each, and close those that have nothing left."""
        for remains in [item for item in self._remains.values() if item.clear()]:
            self._catalog.set_submission_state(
                remains.id, SubmissionState.FAILED, remains.reason, expected=(SubmissionState.FAILING,)
            )
            del self._remains[remains.id]
            self._events.publish({"submission": remains.id, "state": str(SubmissionState.FAILED)})

    def running(self) -> dict[str, FrozenTrial]:
        """Return what still runs of them, by job id: told by its workers, or lost with them."""
        return {
            JobQueue.job_id(item.id, trial.number): trial for item in self._remains.values() for trial in item.running
        }
