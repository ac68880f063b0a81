"""Does what Redis holds agree with the storage? The storage is the truth; here is said what would mend Redis.

A running pool is always between two steps somewhere, so a difference counts only when it is seen twice, with more time
in between than a coordinator or a worker needs to mend it. Comparing is pure; `Mender` reads and writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from vrampool.messages import Ticket
from vrampool.queueing import JobQueue
from vrampool.queueing.inventory import (
    MENDED_KEPT_S,
    Inventory,
    drop_doubles,
    drop_strange,
    forget_execution,
    forget_rq_worker,
    give_end,
    take_inventory,
)
from vrampool.settings import Settings
from vrampool.signing import Signer
from vrampool.storage import (
    FINAL_STATES,
    Catalog,
    SubmissionState,
    cancel_waiting,
    claimed_by,
    fail_lost,
    mark_of,
    requested_bytes,
)

_OPEN = (TrialState.WAITING, TrialState.RUNNING)


class Difference(StrEnum):
    """How Redis and the storage may differ, or Redis with itself."""

    NOT_QUEUED = "not queued"  #: waits in the storage, is in no list and in nobody's hands
    NOT_HELD = "not held"  #: runs in the storage, and no living worker says so
    LEFT_OVER = "left over"  #: waits or runs, though its submission has ended: nobody tends it any more
    NOTHING_WAITS = "nothing waits"  #: a job whose trial has ended, or never was
    LISTED_TWICE = "listed twice"
    BOOKED = "booked"  #: RQ shows an execution that is none
    WORKER_GONE = "worker gone"  #: RQ lists a worker that is not there
    ENDLESS = "endless"  #: a key of ours that should end by itself and does not
    UNKNOWN = "unknown"  #: the same of a key that this version does not know


@dataclass(frozen=True)
class PoolTrial:
    """A trial of the pool that waits or runs."""

    job_id: str
    study_name: str
    number: int
    trial_id: int
    submission_id: str
    submission_state: SubmissionState | None  #: None: there is no such submission
    state: TrialState
    worker: str | None  #: who claimed it
    vram_bytes: int | None  #: None: a whole device

    @property
    def label(self) -> str:
        return f"{self.study_name}/{self.number}"


@dataclass(frozen=True)
class Finding:
    """One difference."""

    kind: Difference
    subject: str  #: job id, key or name: with the kind it names the finding
    text: str  #: what is wrong, fit to be printed
    remedy: str  #: what `--fix` does
    trial: PoolTrial | None = None
    times: int = 1

    @property
    def identity(self) -> tuple[Difference, str]:
        return self.kind, self.subject


def compare(trials: Iterable[PoolTrial], seen: Inventory) -> list[Finding]:
    """Return every difference, in the order in which they matter. Pure."""
    by_job = {trial.job_id: trial for trial in trials}
    findings = [found for trial in by_job.values() if (found := _of_trial(trial, seen)) is not None]
    findings += _of_jobs(by_job, seen)
    findings += _of_books(by_job, seen)
    for key in seen.endless:
        kind, text = Difference.ENDLESS, f"the key {key} should end by itself and does not"
        if key in seen.unknown:
            kind, text = Difference.UNKNOWN, f"the key {key} is none that this version writes, and has no end"
        findings.append(_found(kind, key, text, f"let it end in {MENDED_KEPT_S // 60} minutes"))
    return findings


def _found(kind: Difference, subject: str, text: str, remedy: str, **more: Any) -> Finding:
    return Finding(kind, subject, text.encode(errors="backslashreplace").decode(), remedy, **more)


def _of_trial(trial: PoolTrial, seen: Inventory) -> Finding | None:
    held = trial.job_id in seen.holders
    if trial.submission_state is None or trial.submission_state in FINAL_STATES:
        if held:
            return None
        state = "is gone" if trial.submission_state is None else f"is {trial.submission_state}"
        text = f"{trial.label} is {trial.state.name}, but its submission {state}"
        return _found(Difference.LEFT_OVER, trial.job_id, text, "end it", trial=trial)
    if trial.state == TrialState.RUNNING:
        if held or trial.worker is None:  # without a claim of ours it is somebody's own optimize()
            return None
        text = f"{trial.label} is RUNNING with worker {trial.worker}, which does not hold it"
        return _found(Difference.NOT_HELD, trial.job_id, text, "fail it as lost; it is tried again", trial=trial)
    if held or trial.submission_state != SubmissionState.OPEN:
        return None
    job = seen.jobs.get(trial.job_id)
    if trial.job_id in seen.listed and job is not None and job.whole:
        return None
    where = "its job was taken and not begun" if trial.job_id in seen.between else "is in no list"
    return _found(Difference.NOT_QUEUED, trial.job_id, f"{trial.label} waits, but {where}", "enqueue it", trial=trial)


def _of_jobs(by_job: dict[str, PoolTrial], seen: Inventory) -> list[Finding]:
    findings = []
    times = Counter(seen.listed)
    known = set(times) | set(seen.between) | {job_id for job_id, job in seen.jobs.items() if job.open and not job.ends}
    for job_id in sorted(known):
        if job_id not in by_job and job_id not in seen.holders:
            text = f"the job {job_id} is there, but no trial waits for it"
            findings.append(_found(Difference.NOTHING_WAITS, job_id, text, "remove it"))
        elif times[job_id] > 1:
            text = f"the job {job_id} is in the list {times[job_id]} times"
            findings.append(_found(Difference.LISTED_TWICE, job_id, text, "leave it there once", times=times[job_id]))
    return findings


def _of_books(by_job: dict[str, PoolTrial], seen: Inventory) -> list[Finding]:
    findings = []
    for composite in seen.started:
        trial = by_job.get(composite.partition(":")[0])
        runs = trial is not None and trial.state == TrialState.RUNNING
        if composite not in seen.executions or not (runs or composite.partition(":")[0] in seen.holders):
            text = f"RQ shows the execution {composite} as running, and it is not"
            findings.append(_found(Difference.BOOKED, composite, text, "take it out of RQ's books"))
    for name in sorted(seen.gone_workers):
        text = f"RQ lists the worker {name}, which is gone"
        findings.append(_found(Difference.WORKER_GONE, name, text, "take it out of RQ's lists"))
    return findings


class Mender:
    """Looks at a pool, and mends.

    Args:
        settings: `pool` names it, `lease_ttl_s` says how long its workers may be silent.
        connection: Redis.
        storage: The pool's storage.
        signer: Signs the tickets of what is enqueued.
    """

    def __init__(self, settings: Settings, connection: Any, storage: Any, signer: Signer) -> None:
        self._settings = settings
        self._connection = connection
        self._storage = storage
        self._catalog = Catalog(storage)
        self._queue = JobQueue(connection, settings.pool, signer)
        #: Between two looks a coordinator has mended what it can (it compares every two seconds), and a worker that
        #: lives has said so.
        self.pause_s = max(3.0, settings.lease_ttl_s + settings.beat_s)

    def look(self) -> list[Finding]:
        """Compare once. What it returns may be a step that is being made just now."""
        before = self._trials()  # states first: what runs then had its lease before
        seen = take_inventory(self._connection, self._settings.pool)
        after = {trial.job_id: trial.state for trial in self._trials()}
        # What moved on between the two reads was no standstill; what came since has had no time to be queued.
        still = [trial for trial in before if after.get(trial.job_id) == trial.state]
        moved = {trial.job_id for trial in before if trial not in still} | (
            set(after) - {trial.job_id for trial in before}
        )
        quiet = seen.uptime_s < self.pause_s  # after a restart of Redis workers must write their leases first
        return [
            finding
            for finding in compare(still, seen)
            if finding.subject.partition(":")[0] not in moved
            and not (quiet and finding.kind in (Difference.NOT_HELD, Difference.LEFT_OVER))
        ]

    def confirm(self, findings: Sequence[Finding]) -> list[Finding]:
        """Look again, `pause_s` after the first look; return what is still there."""
        first = {finding.identity for finding in findings}
        return [finding for finding in self.look() if finding.identity in first]

    def fix(self, findings: Iterable[Finding]) -> None:
        """Mend what was confirmed. Each remedy checks by itself that it still applies, and may be repeated.

        Raises:
            TransientRedisError, TransientStorageError: one of the two is away; the rest is not done.
        """
        epoch = take_inventory(self._connection, self._settings.pool).epoch
        self._queue.lead(epoch)  # whoever leads: what it would enqueue is enqueued in its name
        for finding in findings:
            self._mend(finding)

    def _mend(self, finding: Finding) -> None:
        pool, kind, trial = self._settings.pool, finding.kind, finding.trial
        if kind == Difference.NOT_QUEUED and trial is not None:
            self._queue.enqueue([self._ticket(trial)])
        elif kind == Difference.NOT_HELD and trial is not None:
            if fail_lost(self._storage, trial.trial_id, f"worker {trial.worker} went away without a word"):
                self._queue.cancel([trial.job_id])
        elif kind == Difference.LEFT_OVER and trial is not None:
            self._queue.cancel([trial.job_id])
            reason = "left over from a submission that has ended"
            if not cancel_waiting(self._storage, trial.trial_id, reason):
                fail_lost(self._storage, trial.trial_id, reason)
        elif kind == Difference.NOTHING_WAITS:
            if finding.subject.isascii():
                self._queue.cancel([finding.subject])
            drop_strange(self._connection, pool, finding.subject)
        elif kind == Difference.LISTED_TWICE:
            drop_doubles(self._connection, pool, finding.subject, finding.times)
        elif kind == Difference.BOOKED:
            forget_execution(self._connection, pool, finding.subject)
        elif kind == Difference.WORKER_GONE:
            forget_rq_worker(self._connection, pool, finding.subject)
        else:
            give_end(self._connection, finding.subject)

    def _ticket(self, trial: PoolTrial) -> Ticket:
        return Ticket(
            pool=self._settings.pool,
            study_name=trial.study_name,
            submission_id=trial.submission_id,
            number=trial.number,
            trial_id=trial.trial_id,
            vram_bytes=trial.vram_bytes,
        )

    def _trials(self) -> list[PoolTrial]:
        """Return all trials of the pool that wait or run."""
        states = {row.id: row.state for row in self._catalog.submissions()}
        found = []
        for study in self._storage.get_all_studies():
            for trial in self._storage.get_all_trials(study._study_id, deepcopy=False, states=_OPEN):
                if mark_of(trial) is not None:
                    found.append(_pool_trial(study.study_name, trial, states))
        return found


def _pool_trial(study_name: str, trial: FrozenTrial, states: dict[str, SubmissionState]) -> PoolTrial:
    mark = mark_of(trial)
    assert mark is not None
    return PoolTrial(
        job_id=JobQueue.job_id(mark.submission, trial.number),
        study_name=study_name,
        number=trial.number,
        trial_id=trial._trial_id,
        submission_id=mark.submission,
        submission_state=states.get(mark.submission),
        state=trial.state,
        worker=claimed_by(trial),
        vram_bytes=requested_bytes(trial),
    )
