"""Submissions, bundles and starting points: what the pool keeps beside the studies, in the same database."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage
from sqlalchemy.exc import IntegrityError

from vrampool.errors import MessageError
from vrampool.storage.clock import StorageClock
from vrampool.storage.faults import TransientStorageError, describe_fault
from vrampool.storage.opening import storage_of
from vrampool.storage.schema import bundles, points, submissions

#: A bundle is put before its submission is added; it is not swept away in between.
_BUNDLE_GRACE_S = 3600.0


class SubmissionState(StrEnum):
    """Where a submission is. The first four are live, the last four final."""

    OPEN = "open"  #: trials are created and run
    STOPPING = "stopping"  #: no new trials, running ones finish; becomes STOPPED
    CANCELLING = "cancelling"  #: running ones are ended too; becomes CANCELLED
    FAILING = "failing"  #: broken; no new trials, running ones finish; becomes FAILED
    DONE = "done"  #: all that was asked for
    STOPPED = "stopped"  #: ended early on request, or when its time was up
    CANCELLED = "cancelled"
    FAILED = "failed"  #: `reason` says why

    @property
    def final(self) -> bool:
        return self in FINAL_STATES


FINAL_STATES = frozenset(
    {SubmissionState.DONE, SubmissionState.STOPPED, SubmissionState.CANCELLED, SubmissionState.FAILED}
)


@dataclass(frozen=True)
class SubmissionRow:
    """One submission as stored."""

    id: str
    study_name: str
    spec_text: str  #: signed JSON; `vrampool.signing` opens it
    state: SubmissionState
    reason: str  #: why it ended or is ending; empty while nothing is to be said
    sequence: int  #: order in which submissions were added
    created_at: float  #: seconds since the epoch, by the database's clock


class Catalog:
    """Reads and writes the pool's own tables. Any number of processes may.

    Args:
        storage: The pool's storage, or a view of it.

    All methods raise `TransientStorageError` when the database does not answer: repeat the call.
    """

    def __init__(self, storage: BaseStorage) -> None:
        self._database = storage_of(storage).database
        self._clock = StorageClock(self._database)

    def now_s(self) -> float:
        """Return the time by the database's clock, which all times here are of: seconds since the epoch."""
        return self._clock.now_s()

    # ---- submissions --------------------------------------------------------------------------------

    def add_submission(
        self, submission_id: str, study_name: str, spec_text: str, *, bundle_sha256: str | None = None
    ) -> None:
        """Add a submission, OPEN. Adding the same id again changes nothing."""
        now_s = self.now_s()
        row = {
            "id": submission_id,
            "study_name": study_name,
            "spec_text": spec_text,
            "bundle_sha256": bundle_sha256,
            "state": str(SubmissionState.OPEN),
            "reason": "",
            "created_at": now_s,
            "updated_at": now_s,
        }
        self._insert_once(submissions, row)

    def submissions(self, states: Collection[SubmissionState] | None = None) -> list[SubmissionRow]:
        """Return submissions in the order they were added; None: in whatever state."""
        query = sa.select(submissions).order_by(submissions.c.sequence)
        if states is not None:
            query = query.where(submissions.c.state.in_([str(state) for state in states]))
        with self._database.snapshot() as session:
            return [_row(found) for found in session.execute(query)]

    def submission(self, submission_id: str) -> SubmissionRow | None:
        """Return one submission; None when there is none of that id."""
        with self._database.snapshot() as session:
            found = session.execute(sa.select(submissions).where(submissions.c.id == submission_id)).one_or_none()
        return None if found is None else _row(found)

    def set_submission_state(
        self,
        submission_id: str,
        state: SubmissionState,
        reason: str | None,
        *,
        expected: Collection[SubmissionState] | None,
    ) -> bool:
        """Move a submission on, if it is in one of the expected states (None: in any). True for who moved it."""
        move = (
            sa.update(submissions)
            .where(submissions.c.id == submission_id)
            .values(state=str(state), reason=reason or "", updated_at=self.now_s())
        )
        if expected is not None:
            move = move.where(submissions.c.state.in_([str(one) for one in expected]))
        with self._database.transaction() as session:
            return bool(session.execute(move).rowcount)  # type: ignore[attr-defined]

    # ---- bundles ------------------------------------------------------------------------------------

    def put_bundle(self, sha256: str, body: bytes, signature: str) -> None:
        """Keep a bundle under its hash. Putting it again signs it anew, and keeps it from being dropped just now."""
        row = {"sha256": sha256, "body": body, "signature": signature, "created_at": self.now_s()}
        if self._insert_once(bundles, row):
            return
        again = sa.update(bundles).where(bundles.c.sha256 == sha256)  # the pool may have another secret by now
        with self._database.transaction() as session:
            session.execute(again.values(signature=signature, created_at=row["created_at"]))

    def get_bundle(self, sha256: str) -> tuple[bytes, str] | None:
        """Return a bundle's body and signature; None when it is not kept (any more).

        Raises:
            MessageError: what is kept there is no bundle: it was altered.
        """
        query = sa.select(bundles.c.body, bundles.c.signature).where(bundles.c.sha256 == sha256)
        try:
            with self._database.snapshot() as session:
                found = session.execute(query).one_or_none()
        except TransientStorageError:
            raise
        except StorageInternalError as error:
            raise MessageError(f"bundle {sha256[:12]} cannot be read: {describe_fault(error)}") from error
        return None if found is None else (bytes(found.body), found.signature)

    def drop_bundles_of_ended(self, *, grace_s: float = _BUNDLE_GRACE_S) -> int:
        """Drop bundles that no live submission names, unless they were put within the last `grace_s`.

        Returns:
            How many were dropped.
        """
        named = (
            sa.select(submissions.c.bundle_sha256)
            .where(submissions.c.bundle_sha256.is_not(None))
            .where(submissions.c.state.not_in([str(state) for state in FINAL_STATES]))
        )
        drop = sa.delete(bundles).where(bundles.c.sha256.not_in(named), bundles.c.created_at <= self.now_s() - grace_s)
        with self._database.transaction() as session:
            return int(session.execute(drop).rowcount)  # type: ignore[attr-defined]

    # ---- starting points ----------------------------------------------------------------------------

    def reserve_point(self, study_name: str, point_sha256: str, submission_id: str) -> bool:
        """Reserve a starting point of a study for a submission; True for one submission, however many ask.

        The owner gets True again when it asks again: it may have died between reserving and creating the trial.
        """
        row = {"study_name": study_name, "point_sha256": point_sha256, "submission_id": submission_id}
        if self._insert_once(points, row):
            return True
        owner = sa.select(points.c.submission_id).where(
            points.c.study_name == study_name, points.c.point_sha256 == point_sha256
        )
        with self._database.snapshot() as session:
            return bool(session.scalar(owner) == submission_id)

    def release_point(self, study_name: str, point_sha256: str, submission_id: str) -> None:
        """Give a reserved point up: its trial was cancelled before it ran. Nothing happens when another owns it."""
        drop = sa.delete(points).where(
            points.c.study_name == study_name,
            points.c.point_sha256 == point_sha256,
            points.c.submission_id == submission_id,
        )
        with self._database.transaction() as session:
            session.execute(drop)

    def _insert_once(self, table: sa.Table, row: Mapping[str, object]) -> bool:
        """Insert a row unless one with its key is there. True when it was inserted."""
        try:
            with self._database.transaction() as session:
                session.execute(sa.insert(table).values(row))
        except IntegrityError:
            return False
        return True


def _row(found: sa.Row[tuple[object, ...]]) -> SubmissionRow:
    return SubmissionRow(
        id=found.id,
        study_name=found.study_name,
        spec_text=found.spec_text,
        state=SubmissionState(found.state),
        reason=found.reason,
        sequence=found.sequence,
        created_at=found.created_at,
    )
