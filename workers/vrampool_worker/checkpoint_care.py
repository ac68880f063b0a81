"""A worker's care for checkpoints: tells each trial where its own lie, removes those of roots that have ended."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vrampool.checkpoints import CheckpointFolder
from vrampool.messages import AttemptFacts, EndKind, SubmissionSpec
from vrampool.storage.marks import MARK
from vrampool_worker.lanes import Lane

if TYPE_CHECKING:
    from vrampool_worker.attempts import Attempt
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")

#: Ends after which no other attempt comes, whatever came before. After others one may, or may not, come: what those
#: leave goes with their submission.
_FOR_GOOD = frozenset(
    {
        EndKind.COMPLETE,
        EndKind.PRUNED,
        EndKind.FAILED,
        EndKind.INFEASIBLE,
        EndKind.CANCELLED,
        EndKind.REFUSED,
    }
)
#: Pause between two looks for submissions that ended while nobody was here to hear it.
SWEEP_S = 600.0


class CheckpointCare:
    """Removal runs in a lane of its own: a few GB on a busy network disk take a while.

    Args:
        loop: The worker's main loop.
    """

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop
        self._folder = CheckpointFolder(loop.settings)
        self._lane = Lane("vrampool-checkpoints", loop.inbox)
        self._sweeping = False
        loop.every(SWEEP_S, self.sweep)

    def place(self, attempt: Attempt, snapshot: dict[str, Any]) -> dict[str, Any]:
        """Return what the trial's process must know: the root trial's folder, and the attempt's number."""
        root, number = _lineage(attempt, snapshot)
        return {"folder": str(self._folder.of_root(attempt.ticket.submission_id, root)), "attempt": number}

    def told(self, attempt: Attempt, facts: AttemptFacts) -> None:
        """An attempt's end is in the storage: its checkpoints have done their work if the root trial ended too."""
        if attempt.root is None or not ends_for_good(facts, attempt.spec):
            return
        submission, root = attempt.ticket.submission_id, attempt.root
        self._lane.submit(lambda: self._folder.remove_root(submission, root), self._done)

    def sweep(self) -> None:
        """Look for checkpoints of submissions that have ended, and remove them."""
        if self._sweeping:
            return
        self._sweeping = True
        self._lane.submit(self._folder.submissions, self._ask)

    def _ask(self, found: list[str] | None, error: BaseException | None) -> None:
        if not found or error is not None or not self._loop.connected:
            self._sweeping = False
            return
        self._loop.storage_lane.submit(lambda: self._loop.desk.ended(found), self._clear)

    def _clear(self, ended: Iterable[str] | None, error: BaseException | None) -> None:
        self._sweeping = False
        if error is not None:
            _log.debug("what has ended is not known: %s", error)
        for submission in ended or ():
            self._lane.submit(lambda submission=submission: self._folder.remove_submission(submission), self._done)  # type: ignore[misc]

    def _done(self, _result: object, error: BaseException | None) -> None:
        if error is not None:
            _log.warning("checkpoints could not be removed: %s", error)


def ends_for_good(facts: AttemptFacts, spec: SubmissionSpec | None) -> bool:
    """True when no other attempt follows an attempt that ended so."""
    if facts.end == EndKind.TIMEOUT:
        return spec is not None and not spec.retry_timeouts
    return facts.end in _FOR_GOOD


def _lineage(attempt: Attempt, snapshot: dict[str, Any]) -> tuple[int, int]:
    """Return the number of the root trial and that of the attempt, as the trial's mark says."""
    mark = snapshot.get("user_attrs", {}).get(MARK)
    mark = mark if isinstance(mark, dict) else {}
    root, number = mark.get("root"), mark.get("attempt")
    attempt.root = root if isinstance(root, int) else attempt.ticket.number
    return attempt.root, number if isinstance(number, int) and number > 0 else 1
