"""The coordinator's loop. It leads by a lease with an epoch; whoever leads can go on from the storage alone."""

from __future__ import annotations

import logging
import math
import os
import select
import socket
import time
from collections.abc import Callable, Container, Sequence
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial

from vrampool.coordinator.earlier import Learning
from vrampool.coordinator.filling import Filling
from vrampool.coordinator.leading import Lead
from vrampool.coordinator.reaper import Reaper
from vrampool.coordinator.refused import LIVE_STATES, RefusedSubmissions
from vrampool.coordinator.tender import Tender
from vrampool.errors import InputError, MessageError, UnreachableError
from vrampool.messages import Ticket
from vrampool.queueing import (
    ENQUEUED,
    Demand,
    Events,
    JobQueue,
    Leadership,
    Liveness,
    Registry,
    Roster,
    StaleLeaderError,
    Subscription,
    TransientRedisError,
)
from vrampool.settings import Settings
from vrampool.signing import Signer, open_spec
from vrampool.storage import (
    Catalog,
    KnownTrials,
    SubmissionRow,
    SubmissionState,
    TransientStorageError,
    claimed_by,
    fail_lost,
    mark_of,
    storage_of,
)

_log = logging.getLogger("vrampool.coordinator")

#: Pause between two looks when nothing happens. Events wake the loop at once; this is for events that got lost.
IDLE_S = 1.0
#: Pause between two comparisons of waiting trials with the queue.
RECONCILE_S = 2.0
#: Pause between two looks at how large the largest device is.
LARGEST_S = 5.0


class Coordinator:
    """Tends every submission of a pool.

    Args:
        settings: Settings of the pool.
        connection: Redis, used by this loop alone.
        storage: The pool's Optuna storage.
        signer: Checks submissions, signs tickets.
        idle_exit_s: Return from `run` when there was nothing to do for so long; None: never.
        show: Called about every second with a state and, where it cannot work, the reason; for signs of life.
    """

    def __init__(
        self,
        settings: Settings,
        connection: Any,
        storage: Any,
        signer: Signer,
        *,
        idle_exit_s: float | None = None,
        show: Callable[[str, str], None] = lambda _state, _reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._signer = signer
        self._clock = clock
        self._idle_exit_s = idle_exit_s
        self._show = show
        self._catalog = Catalog(storage)
        storage_of(storage).database.known_trials = KnownTrials(clock)
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        self._queue = JobQueue(connection, settings.pool, signer)
        leadership = Leadership(connection, settings.pool, self.name)
        self._lead = Lead(leadership, storage, settings.pool, self.name, self._queue, clock=clock)
        self._registry = Registry(connection, settings.pool)
        roster = Roster(connection, settings.pool, settings.lease_ttl_s, lambda: self._clock())
        self._demand = Demand(connection, settings.pool)
        self._events = Events(connection, settings.pool)
        self._reaper = Reaper(Liveness(connection, settings.pool), ttl_s=settings.lease_ttl_s, beat_s=settings.beat_s)
        self._learning = Learning(storage, self._catalog, signer)
        self._filling = Filling(self, storage, roster.workers, settings.age_limit_s, lambda: self._clock())
        self._tenders: dict[str, Tender] = {}
        self._refused = RefusedSubmissions(storage, self._catalog, self._queue, self._events)
        self._stop = False
        self._stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._reconciled_at_s = -1e9
        self._reaped_at_s = -1e9
        self._read_at_s = -1e9
        self._largest_at_s = -1e9
        self._largest_bytes = 0
        self._busy_at_s = clock()

    def stop(self) -> None:
        """Ask `run` to return after the step in hand. Safe in a signal handler."""
        self._stop = True
        os.eventfd_write(self._stop_fd, 1)  # else a pause is sat out: Python goes on with it after the handler

    def __del__(self) -> None:
        os.close(self._stop_fd)

    def _rest(self, pause_s: float, *others: int) -> None:
        """Do nothing for a while; a stop ends it, and whatever is to be read from the other descriptors."""
        select.select([self._stop_fd, *others], [], [], pause_s)

    def _wait(self, events: Subscription) -> None:
        """Do nothing until something is due, or changed. What was enqueued it knows: it was it."""
        until_s = time.monotonic() + self._pause_s()
        while not self._stop and (left_s := until_s - time.monotonic()) > 0:
            self._rest(left_s, events.fileno())
            if any(event.get("kind") != ENQUEUED for event in events.read()):
                return

    def run(self) -> None:
        """Lead and tend until `stop`, or until idle for long."""
        pause_s = 0.2
        with self._events.subscribe() as wake:
            while not self._stop:
                try:
                    leads = self.turn()
                    self._show("leading" if leads else "standing by", "")
                    if leads and self._idle_for_long():
                        _log.info("nothing to do for %.0f s: the coordinator ends", self._idle_exit_s)
                        break
                    pause_s = 0.2
                    self._wait(wake)
                except StaleLeaderError:
                    _log.warning("another coordinator leads now")
                    self._lead.lost()
                    self._drop_all()
                except (TransientRedisError, TransientStorageError, StorageInternalError, UnreachableError) as error:
                    _log.warning("%s; the coordinator tries again in %.1f s", str(error).splitlines()[0], pause_s)
                    self._show("waiting", str(error).splitlines()[0])
                    if isinstance(error, TransientRedisError):
                        self._reaper.forgive(self._clock())
                    elif self._lead.storage_is_silent():
                        self._drop_all()
                    self._rest(pause_s)
                    pause_s = min(pause_s * 2, 5.0)
        self._drop_all()
        self._learning.close()
        self._lead.release()

    def turn(self) -> bool:
        """Lead if no other coordinator does, and tend everything once. False while another one leads."""
        led = self._lead.epoch
        if not self._lead.hold():
            return False
        if led is None:
            self._demand.forget()
        self._step()
        self._lead.storage_answers()
        self._demand.tell(sum(tender.demand for tender in self._tenders.values()))
        return True

    def _pause_s(self) -> float:
        """Return how long nothing is due, if no event comes."""
        if self._lead.epoch is None:
            return IDLE_S
        pauses_s = [self._left_s(tender) for tender in self._tenders.values()] + [self._reaper.due_s - self._clock()]
        return max(min(IDLE_S if self._tenders else IDLE_S * 2, *pauses_s), 0.01)

    def _left_s(self, tender: Tender) -> float:
        """Return how long a submission may create trials yet."""
        if tender.spec.timeout_s is None or tender.row.state != SubmissionState.OPEN:
            return math.inf
        return tender.row.created_at + tender.spec.timeout_s - self._catalog.now_s()

    def _idle_for_long(self) -> bool:
        if self._tenders:
            self._busy_at_s = self._clock()
        return self._idle_exit_s is not None and self._clock() - self._busy_at_s > self._idle_exit_s

    # ---- one step ----------------------------------------------------------------------------------

    def _step(self) -> None:
        # Trials before submissions: a trial that is seen finished has told its stop, if any, before that.
        self._read_at_s = self._clock()
        trials = self._read()
        self._update_tenders(self._catalog.submissions(states=LIVE_STATES))
        self._refused.clear()
        if not self._tenders and not self._refused:
            return
        trials |= self._read(but=trials)
        now_s = self._clock()
        if now_s - self._largest_at_s > LARGEST_S:
            self._largest_bytes = self._registry.largest_budget(time.time()) or 0
            self._largest_at_s = now_s if self._largest_bytes else -1e9
        for tender in self._in_order():
            tender.sizing.largest_bytes = self._largest_bytes
            self._filling.retry(tender, tender.observe(trials[tender.study_id]))
            self._judge(tender)
        self._reap(now_s)
        if now_s - self._reconciled_at_s > RECONCILE_S:
            self._reconcile()
            self._reconciled_at_s = now_s
        self._filling.fill(self._tenders, self._in_order(), self._read_at_s)
        for tender in list(self._tenders.values()):
            self._conclude(tender)

    def _update_tenders(self, rows: Sequence[SubmissionRow]) -> None:
        ids = {row.id for row in rows}
        for gone in set(self._tenders) - ids:
            self._drop(gone)
        for row in rows:
            if row.id in self._tenders:
                self._tenders[row.id].row = row
            elif row.id not in self._refused:
                try:
                    self._tenders[row.id] = self._tend(row)
                except (MessageError, InputError, KeyError) as error:
                    self._refused.refuse(row, error)

    def _tend(self, row: SubmissionRow) -> Tender:
        spec = open_spec(self._signer, row.id, row.spec_text)
        sizing = self._learning.sizing(spec)
        return Tender(self._storage, self._catalog, self._queue, row, spec, self._settings.pool, sizing=sizing)

    def _drop_all(self) -> None:
        for submission_id in list(self._tenders):
            self._drop(submission_id)

    def _drop(self, submission_id: str) -> None:
        self._tenders.pop(submission_id).sizing.close()

    def _read(self, *, but: Container[int] = ()) -> dict[int, list[FrozenTrial]]:
        """Return the trials of every study that is tended, by the study's id."""
        found: dict[int, list[FrozenTrial]] = {}
        for tender in list(self._tenders.values()):
            if tender.study_id in found or tender.study_id in but:
                continue
            try:
                found[tender.study_id] = self._storage.get_all_trials(tender.study_id, deepcopy=False)
            except KeyError as error:
                self._drop(tender.id)
                self._refused.refuse(tender.row, error)
        return found

    def _in_order(self) -> list[Tender]:
        """Higher priority first; among equals whoever has fewer trials under way, then the older one."""
        return sorted(self._tenders.values(), key=lambda t: (-t.spec.priority, t.live, t.row.sequence))

    def _judge(self, tender: Tender) -> None:
        """Move a submission on when its time is up, when it is broken, or when it was stopped."""
        if tender.row.state == SubmissionState.OPEN:
            reason = tender.sizing.too_large(self._clock()) or tender.broken()
            if reason is not None:
                self.move(tender, SubmissionState.FAILING, reason)
            elif self._left_s(tender) <= 0:
                self.move(tender, SubmissionState.STOPPING, f"timeout {tender.spec.timeout_s:g} s")
        if tender.row.state != SubmissionState.OPEN:
            tender.cancel_waiting(tender.row.reason or "stopped")

    def move(self, tender: Tender, state: SubmissionState, reason: str) -> None:
        """Move a submission on, unless somebody did already."""
        if self._catalog.set_submission_state(tender.id, state, reason, expected=(tender.row.state,)):
            _log.info("submission %s of %s: %s (%s)", tender.id, tender.spec.study_name, state, reason)
        tender.row = self._catalog.submission(tender.id) or tender.row
        self._events.publish({"submission": tender.id, "state": str(tender.row.state)})

    def _conclude(self, tender: Tender) -> None:
        """Close a submission that has nothing left to do."""
        if tender.open_numbers or tender.live:
            return
        ends = {
            SubmissionState.STOPPING: SubmissionState.STOPPED,
            SubmissionState.CANCELLING: SubmissionState.CANCELLED,
            SubmissionState.FAILING: SubmissionState.FAILED,
        }
        if tender.row.state == SubmissionState.OPEN:
            if tender.wants_more():
                return
            self.move(tender, SubmissionState.DONE, tender.row.reason or "")
        else:
            self.move(tender, ends[tender.row.state], tender.row.reason or "")
        self._drop(tender.id)
        if tender.spec.objective.bundle_sha256 is not None:
            self._catalog.drop_bundles_of_ended()  # this one too, an hour after it was put: others may want it

    # ---- what filling the pool asks for ------------------------------------------------------------

    def keep_leading(self) -> None:
        """Renew the lease when it is time to."""
        self._lead.hold()

    def read_row(self, tender: Tender) -> None:
        """Read a submission's row: whether it was stopped, for example."""
        tender.row = self._catalog.submission(tender.id) or tender.row

    def call(self, workers: Sequence[str]) -> None:
        """Call workers, by name, to what waits."""
        self._queue.call(workers)

    def enqueue(
        self,
        tickets: Sequence[Ticket],
        *,
        front: bool = False,
        waited_s: float = 0.0,
        workers: Sequence[str] | None = None,
    ) -> None:
        """Put trials into the queue, each with what its submission says of it; see `JobQueue.enqueue`."""
        for ticket in tickets:
            tender = self._tenders[ticket.submission_id]
            avoid = tender.avoid(ticket.number)
            self._queue.enqueue(
                [ticket],
                requires=tender.requires,
                avoid=avoid,
                beyond_bytes=tender.beyond(ticket.number),
                front=front,
                waited_s=waited_s,
                priority=tender.spec.priority,
                workers=workers,
            )

    # ---- mending -----------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Enqueue again what waits in the storage but in no list: Redis is only a cache of what is wanted."""
        for tender in self._tenders.values():
            waiting = tender.waiting()
            if not waiting or tender.row.state != SubmissionState.OPEN:
                continue
            known = self._queue.known([tender.job_id(trial.number) for trial in waiting])
            for trial in waiting:
                if tender.job_id(trial.number) not in known:
                    _log.info("%s/%s waits but is in no list: enqueued", tender.spec.study_name, trial.number)
                    self.enqueue([tender.ticket_of(trial)])

    def _reap(self, now_s: float) -> None:
        """Fail running trials whose worker is gone; their retries follow from that at the next step."""
        if now_s < min(self._reaped_at_s + self._settings.lease_ttl_s / 6, self._reaper.due_s):
            return
        self._reaped_at_s = now_s
        # A trial that runs without our claim was popped by somebody's own optimize(): it is left to him.
        running = {
            tender.job_id(trial.number): trial
            for tender in self._tenders.values()
            for trial in tender.running()
            if mark_of(trial) is not None and claimed_by(trial) is not None
        }
        running |= self._refused.running()
        for job_id in self._reaper.lost(running, now_s):
            trial = running[job_id]
            reason = f"worker {claimed_by(trial)} went away without a word"
            if fail_lost(self._storage, trial._trial_id, reason):
                _log.warning("trial %s is lost: %s", job_id, reason)
                self._queue.cancel([job_id])  # or its job would wait for RQ's own clean-up
                self._events.tell({"lost": job_id})
