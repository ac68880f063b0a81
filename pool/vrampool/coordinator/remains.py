"""What is left of a submission that cannot be tended: its text was altered, or its sampler is not here any more."""

from __future__ import annotations

from typing import Any

from optuna.trial import FrozenTrial, TrialState

from vrampool.queueing import JobQueue
from vrampool.storage import cancel_waiting, storage_of


class Remains:
    """Ends the trials of a refused submission. They are found by their marks: nothing in its row can be trusted.

    Args:
        storage: The pool's storage.
        queue: The job queue.
        submission_id: The submission.
        reason: Why it was refused.
    """

    def __init__(self, storage: Any, queue: JobQueue, submission_id: str, reason: str) -> None:
        self.id = submission_id
        self.reason = reason
        self._storage = storage
        self._queue = queue
        self.running: list[FrozenTrial] = []

    def clear(self) -> bool:
        """End what waits, note what runs: that is told by its workers, or lost with them. True when none is left."""
        found = [self._storage.get_trial(trial_id) for trial_id in self._open_ids()]
        waiting = [trial for trial in found if trial.state == TrialState.WAITING]
        self.running = [trial for trial in found if trial.state == TrialState.RUNNING]
        if waiting:
            self._queue.cancel([JobQueue.job_id(self.id, trial.number) for trial in waiting])
            for trial in waiting:
                cancel_waiting(self._storage, trial._trial_id, self.reason)
        return not self.running and not self._open_ids()

    def _open_ids(self) -> list[int]:
        return storage_of(self._storage).database.open_trials_of(self.id)
