"""One submission as the coordinator tends it: learn, ask, size, enqueue, observe, retry, stop."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from vrampool import retries
from vrampool.coordinator.failures import Failures
from vrampool.coordinator.points import StartingPoints
from vrampool.coordinator.proposals import Proposals, learns_from_constraints
from vrampool.coordinator.sizing import Sizing
from vrampool.coordinator.space import KnownSpace
from vrampool.errors import InputError
from vrampool.memory.requests import Request
from vrampool.messages import SubmissionSpec, Ticket
from vrampool.objectives.random_states import COORDINATOR, RandomStates
from vrampool.objectives.samplers import open_pruner, open_sampler
from vrampool.queueing import Demand, JobQueue, WorkerRecord
from vrampool.storage import (
    REQUEST,
    Catalog,
    Mark,
    QueueView,
    SubmissionRow,
    SubmissionState,
    adopt_waiting,
    cancel_waiting,
    claimed_by,
    create_planned,
    create_retry,
    dump_plan,
    mark_of,
    record_plan,
)

_log = logging.getLogger("vrampool.coordinator")


@dataclass
class _Root:
    number: int
    attempts: list[int]  #: all attempts at one asked-for trial


class Tender:
    """Tends one submission. Everything it decides follows from the storage, so another coordinator can go on.

    Args:
        storage: The pool's storage.
        catalog: Its tables of submissions and points.
        queue: The job queue.
        row: The submission's row.
        spec: What was asked for, its signature checked.
        sizing: Decides how much memory its trials ask for; None: of what its own trials show, without a model.
    """

    def __init__(
        self,
        storage: Any,
        catalog: Catalog,
        queue: JobQueue,
        row: SubmissionRow,
        spec: SubmissionSpec,
        pool: str,
        *,
        sizing: Sizing | None = None,
    ) -> None:
        self.id = row.id
        self.row = row
        self.spec = spec
        self._storage = storage
        self._catalog = catalog
        self._queue = queue
        self._pool = pool
        self.study_id: int = storage.get_study_id_from_name(spec.study_name)
        view = QueueView(storage, mark=Mark(submission=row.id))
        # The objects are made as Optuna makes them for a loaded study; only the storage underneath differs.
        self.study = optuna.Study(
            study_name=spec.study_name, storage=view, sampler=self._sampler(), pruner=open_pruner(spec.pruner)
        )
        view.memory_constraints = learns_from_constraints(self.study.sampler)
        self.sizing = Sizing(spec) if sizing is None else sizing
        self._proposals = Proposals(self.study, view, self.sizing)
        self._unsized: str | None = None
        self._space = KnownSpace()
        self._seen = 0
        self._open: dict[int, FrozenTrial | None] = {}  #: own trials by number, as observed: most do not change
        self._roots: dict[int, _Root] = {}
        self._ended_roots: set[int] = set()  #: those that have ended for good,
        self._counted_roots: set[int] = set()  #: and of them those that count
        self._settled = 0  #: all trials with smaller numbers have finished
        self._retried: set[int] = set()
        self._new_requests: dict[int, dict[str, Any]] = {}  #: of retries, until they are read
        self._failures = Failures(spec)
        self._points = StartingPoints(catalog, spec)
        self._trials: Sequence[FrozenTrial] = ()
        self.owed_by_others = 0.0  #: trials that other open submissions will add to the study; see `owing`

    def _sampler(self) -> optuna.samplers.BaseSampler:
        """Open the sampler. A study's first one begins as in Optuna; whoever comes later must not repeat its points."""
        sampler = open_sampler(self.spec.sampler, seed=self.spec.seed)
        created = self._storage.get_n_trials(self.study_id)
        earlier = sum(
            row.study_name == self.spec.study_name and row.sequence < self.row.sequence
            for row in self._catalog.submissions()
        )
        if created or earlier:
            RandomStates(sampler).seed_for(COORDINATOR, created, earlier)
        return sampler

    # ---- observing -------------------------------------------------------------------------------

    def observe(self, trials: Sequence[FrozenTrial]) -> list[Ticket]:
        """Take in the study's trials as read just now; return tickets of retries that were created.

        Args:
            trials: All trials of the study, by number.
        """
        self._trials = trials
        for trial in trials[self._seen :]:
            mark = mark_of(trial)
            if mark is not None and mark.submission == self.id:
                self._note(trial, mark)
            elif trial.state.is_finished():
                self.sizing.learn(trial)
        self._seen = len(trials)
        self._new_requests = {number: request for number, request in self._new_requests.items() if number >= self._seen}
        tickets = []
        for number in sorted(number for number, seen in self._open.items() if trials[number] is not seen):
            trial = trials[number]
            if trial.state.is_finished() or is_foreign(trial):
                tickets += self._finished(trial)  # before it is put aside: this writes, and is tried again if it fails
                del self._open[number]
                self.sizing.learn(trial)
            else:
                self._open[number] = trial
        self.sizing.refresh()
        return tickets

    def made(self, trial: FrozenTrial) -> None:
        """Take in a trial that it made just now, behind all that were observed."""
        self._trials, self._seen = [*self._trials, trial], trial.number + 1
        if (mark := mark_of(trial)) is not None:
            self._note(trial, mark)

    def look_at(self, records: Iterable[WorkerRecord]) -> None:
        """Take in what the pool's workers tell of their devices, and of the trials of this study that run there."""
        records = list(records)
        running = {
            item.number: item.peak_bytes
            for record in records
            for item in record.running
            if item.peak_bytes and item.study == self.spec.study_name and item.number in self._open
        }
        self.sizing.watch(running, self._trials)
        self.sizing.devices([record.device_name for record in records])
        self.sizing.overhead_bytes = max((r.overhead_bytes for r in records if r.overhead_bytes), default=None)
        self.sizing.refresh()

    def _note(self, trial: FrozenTrial, mark: Mark) -> None:
        root = mark.root if mark.root is not None else trial.number
        self._roots.setdefault(root, _Root(root, [])).attempts.append(trial.number)
        if mark.retry_of is not None:
            self._retried.add(mark.retry_of)
        self._proposals.remember(trial)
        self._open[trial.number] = None

    def _finished(self, trial: FrozenTrial) -> list[Ticket]:
        mark = mark_of(trial)
        root = self._roots[mark.root if mark is not None and mark.root is not None else trial.number]
        if trial.number in self._retried:
            return []
        attempts = [self._trials[number] for number in root.attempts]
        step = retries.next_step(trial, self.spec, attempts, largest_bytes=self.sizing.largest_bytes or None)
        if isinstance(step, retries.Retry):
            if self.row.state != SubmissionState.OPEN:
                self._ended_roots.add(root.number)  # a retry would be a start, and those are over
                return []
            return [self._retry(trial, root, step)]
        if isinstance(step, retries.Final):
            if not step.counts and mark is not None and mark.point is not None:
                self._points.release(mark.point)
            self._ended_roots.add(root.number)
            if step.counts:
                self._counted_roots.add(root.number)
            self._failures.note(trial)
        return []

    def _retry(self, trial: FrozenTrial, root: _Root, step: retries.Retry) -> Ticket:
        trial_id = create_retry(self._storage, self.study_id, trial, step.request, step.reason)
        number = self._storage.get_trial_number_from_id(trial_id)
        self._retried.add(trial.number)
        self._new_requests[number] = step.request
        label, attempt = f"{self.spec.study_name}/{root.number}", len(root.attempts) + 1
        _log.info("%s: attempt %s is trial %s: %s", label, attempt, number, step.reason)
        return self._ticket(number, trial_id, step.request_bytes)

    # ---- what the loop asks ----------------------------------------------------------------------

    @property
    def open_numbers(self) -> Collection[int]:
        """Numbers of own trials that are WAITING or RUNNING, as last observed."""
        return self._open.keys()

    @property
    def trials(self) -> Sequence[FrozenTrial]:
        """All trials of the study, as last observed."""
        return self._trials

    def waiting(self) -> list[FrozenTrial]:
        return self._in_state(TrialState.WAITING)

    def running(self) -> list[FrozenTrial]:
        return self._in_state(TrialState.RUNNING)

    def _in_state(self, state: TrialState) -> list[FrozenTrial]:
        return [trial for number in sorted(self._open) if (trial := self._trials[number]).state == state]

    def job_id(self, number: int) -> str:
        return JobQueue.job_id(self.id, number)

    @property
    def counted(self) -> int:
        return len(self._counted_roots)

    @property
    def live(self) -> int:
        """Root trials that have not ended for good."""
        return len(self._roots) - len(self._ended_roots)

    def may_create(self, devices: int | None = None) -> bool:
        """True while the submission wants another root trial now.

        Args:
            devices: How many take trials; None: not known, and its limit for each of them is left to the workers.
        """
        limit = self.spec.max_concurrent_trials
        if devices is not None and self.spec.max_trials_per_device is not None:
            on_all = devices * self.spec.max_trials_per_device
            limit = on_all if limit is None else min(limit, on_all)
        open_now = self.row.state == SubmissionState.OPEN and (limit is None or self.live < limit)
        return open_now and self.to_come() > self.owed_by_others and self._can_size()

    def _can_size(self) -> bool:
        try:
            return self.sizing.ready()
        except InputError as error:
            self._unsized = str(error)
            return False

    def wants_more(self) -> bool:
        """True when more root trials are to come at all, now or later."""
        return self.to_come() > 0

    def to_come(self) -> float:
        made = self.counted + self.live
        if self.spec.total is not None:
            return self.spec.total - made - retries.count_of_others(self._trials, self.id)
        return math.inf if self.spec.n_trials is None else self.spec.n_trials - made

    @property
    def demand(self) -> int:
        """Trials that wait, run, or would be created if there were devices enough."""
        if self.row.state != SubmissionState.OPEN:
            return len(self._open)
        limit = self.spec.max_concurrent_trials
        more = min(self.to_come() - self.owed_by_others, Demand.MOST if limit is None else limit - self.live)
        return len(self._open) + max(0, int(more))

    def broken(self) -> str | None:
        """Return why the study should stop: it cannot be sized, or its failures say so (`Failures.broken`)."""
        return self._unsized or self._failures.broken()

    # ---- creating --------------------------------------------------------------------------------

    def smallest_request(self) -> int | None:
        """Return the smallest request the next trial is likely to have; None when it will be exclusive."""
        return self.sizing.smallest()

    def create(self) -> Ticket:
        """Create the next trial: a user's own waiting one, a starting point, or one asked from the sampler."""
        ticket = self._adopt() or self._point()
        if ticket is not None:
            return ticket
        space = self._space.of(self.study, self._trials)
        proposal = self._proposals.ask(space, self._trials)
        trial = proposal.trial
        size = self._size(trial.params)
        request = size.to_json(**({"refused": proposal.refused} if proposal.refused else {}))
        record_plan(self._storage, trial._trial_id, dump_plan(trial), request)
        return self._ticket(trial.number, trial._trial_id, size.request_bytes)

    def _adopt(self) -> Ticket | None:
        """Take over a trial that the user enqueued with `study.enqueue_trial`."""
        mark = Mark(submission=self.id)
        while self._settled < len(self._trials) and self._trials[self._settled].state.is_finished():
            self._settled += 1  # trials that have finished are never free again, and a study may have thousands
        for seen in itertools.islice(self._trials, self._settled, None):
            if not _is_free(seen):
                continue
            trial = self._storage.get_trial(seen._trial_id)
            if not _is_free(trial):  # another submission of the study was quicker
                continue
            size = self._size(trial.system_attrs.get("fixed_params", {}))
            request = size.to_json()
            if adopt_waiting(self._storage, trial._trial_id, mark, request):
                self._note(trial, mark)
                return self._ticket(trial.number, trial._trial_id, size.request_bytes)
        return None

    def _point(self) -> Ticket | None:
        """Create the next starting point that is not there yet."""
        index = self._points.next(self._trials)
        if index is None:
            return None
        point = self.spec.points[index]
        size = self._size(point)
        request = size.to_json()
        mark = Mark(submission=self.id, point=index)
        trial_id = create_planned(self._storage, self.study_id, mark, fixed_params=point, request=request)
        return self._ticket(self._storage.get_trial_number_from_id(trial_id), trial_id, size.request_bytes)

    def _size(self, params: dict[str, Any]) -> Request:
        try:
            return self.sizing.request(params)
        except InputError as error:  # the submission's own function failed: it is moved to its end at the next look
            self._unsized = str(error)
            return Request(None, str(error))

    def _ticket(self, number: int, trial_id: int, request_bytes: int | None) -> Ticket:
        return Ticket(
            pool=self._pool,
            study_name=self.spec.study_name,
            submission_id=self.id,
            number=number,
            trial_id=trial_id,
            vram_bytes=request_bytes,
        )

    @property
    def requires(self) -> str:
        """Capabilities a worker must have; objectives are checked by the workers themselves."""
        return ""

    def beyond(self, number: int) -> int:
        """Return how much more than this a device must have that a retry gets as a whole; 0: any will do."""
        return int(self._request(number).get("beyond") or 0)

    def _request(self, number: int) -> dict[str, Any]:
        """Return what a trial asks for; of a retry that was created just now too, which was not read yet."""
        if number < len(self._trials):
            return self._trials[number].user_attrs.get(REQUEST) or {}
        return self._new_requests.get(number, {})

    def avoid(self, number: int) -> str:
        """Return the device that a retry shall not go to at once, for it was a victim there; or nothing."""
        return str(self._request(number).get("avoid") or "")

    def ticket_of(self, trial: FrozenTrial) -> Ticket:
        """Return the ticket of a trial that waits already, to enqueue it again.

        A trial without a request was left by a coordinator that died between creating and sizing it.
        """
        request = trial.user_attrs.get(REQUEST)
        if request is None:
            size = self._size(trial.system_attrs.get("fixed_params", {}))
            request = size.to_json()
            with contextlib.suppress(UpdateFinishedTrialError):  # just ended from outside: nobody will run it
                record_plan(self._storage, trial._trial_id, None, request)
        return self._ticket(trial.number, trial._trial_id, request["bytes"])

    def cancel_waiting(self, reason: str) -> None:
        """End all trials that nobody has started: out of the queue first, then claimed and failed."""
        waiting = self.waiting()
        if waiting:
            self._queue.cancel([self.job_id(trial.number) for trial in waiting])
            for trial in waiting:
                cancel_waiting(self._storage, trial._trial_id, reason)


def _is_free(trial: FrozenTrial) -> bool:
    """Return whether a trial waits for whoever comes: enqueued by the user, and nobody's yet."""
    return trial.state == TrialState.WAITING and mark_of(trial) is None


def is_foreign(trial: FrozenTrial) -> bool:
    """True for a trial of ours that somebody's own `optimize()` popped: it is his now, and nobody waits for it."""
    return bool(trial.state == TrialState.RUNNING) and claimed_by(trial) is None
