"""Asks for trials while some device could start one now, and calls workers to those that wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.trial import FrozenTrial

from vrampool.coordinator.calls import Calls, Waiting
from vrampool.coordinator.depth import Outlook, Rooms, owing
from vrampool.coordinator.patience import Patience
from vrampool.coordinator.tender import Tender
from vrampool.errors import StaleLeaderError
from vrampool.messages import Ticket
from vrampool.storage import SubmissionState, TransientStorageError

if TYPE_CHECKING:
    from vrampool.coordinator.loop import Coordinator

_log = logging.getLogger("vrampool.coordinator")

#: While trials are made one after another, ends of others are seen after so long.
FILL_S = 0.2


class Filling:
    """Fills the pool of a coordinator.

    Args:
        coordinator: Its loop, which enqueues and moves submissions.
        storage: The pool's storage.
        roster: Returns the records of the pool's workers.
        age_limit_s: A submission that finds no room for so long is given a trial all the same.
        clock: Monotonic seconds.
    """

    def __init__(
        self, coordinator: Coordinator, storage: Any, roster: Callable[[], Any], age_limit_s: float, clock: Any
    ) -> None:
        self._loop = coordinator
        self._storage = storage
        self._roster = roster
        self._patience = Patience(age_limit_s)
        self._clock = clock
        self._calls = Calls()
        self._rooms = Rooms()
        self._retries: list[tuple[Tender, Ticket]] = []  #: nobody was called to them yet
        self._read_at_s = -1e9
        self._made: dict[int, int] = {}  #: trials in a study, by its id, as far as they were made in this look

    def retry(self, tender: Tender, tickets: Sequence[Ticket]) -> None:
        """Put retries into the queue, ahead of others. Whoever has room for them is called when the pool is filled."""
        for ticket in tickets:
            self._loop.enqueue([ticket], front=True, workers=())
            self._retries.append((tender, ticket))

    def fill(self, tenders: Mapping[str, Tender], in_order: Sequence[Tender], read_at_s: float) -> None:
        """Ask for trials, and call to those that wait.

        Args:
            tenders: All submissions by their ids.
            in_order: The same, in the order in which they are served.
            read_at_s: When their trials were read.
        """
        self._read_at_s, self._made = read_at_s, {}
        asking = [tender for tender in owing(in_order) if tender.may_create()]
        if not asking:
            self._patience.forget()
        retries, self._retries = self._retries, []
        waiting = _waiting(in_order, retries)
        if not asking and not waiting:
            return
        records = self._roster()
        self._calls.look_at(records)
        if called := self._calls.again([_call(tender, ticket) for tender, ticket in waiting], self._clock()):
            self._loop.call(called)
        for tender in asking:
            tender.look_at(records)
        rooms = self._rooms.of(records)
        queue = [(tender.spec.priority, ticket.vram_bytes) for tender, ticket in waiting]
        beside = _beside_exclusive(waiting)
        for tender in asking:
            # What waits with a lower priority comes after it, so takes no room from it.
            ahead = [request for priority, request in queue if priority >= tender.spec.priority]
            outlook = Outlook(rooms, ahead, beside)
            while tender.may_create(len(rooms)) and outlook.wants(tender.smallest_request()):
                ticket = self._create(tender)
                if ticket is None:
                    break
                outlook.add(ticket.vram_bytes)
                queue.append((tender.spec.priority, ticket.vram_bytes))
                self._loop.enqueue([ticket], workers=self._calls.new(_call(tender, ticket), self._clock()))
                self._read_on(tender, ticket)
                self._loop.keep_leading()  # filling a large pool takes longer than its lease lasts
        self._fill_for_those_without_room(tenders, [item.id for item in asking if rooms and not item.live])

    def _read_on(self, tender: Tender, ticket: Ticket) -> None:
        """Take in the trial that was made just now; the others are as they were read within the last moment."""
        if ticket.number != len(tender.trials) or self._clock() - self._read_at_s > FILL_S:
            self._read_anew(tender)
        else:
            tender.made(self._storage.get_trial(ticket.trial_id))
        self._made[tender.study_id] = len(tender.trials)

    def _read_anew(self, tender: Tender) -> None:
        self._read_at_s = self._clock()
        self._observe(tender)
        self._loop.read_row(tender)  # after the trials: one that is seen finished has told its stop before

    def _observe(self, tender: Tender) -> None:
        for ticket in tender.observe(self._all_of(tender)):
            self._loop.enqueue([ticket], front=True, workers=self._calls.new(_call(tender, ticket), self._clock()))

    def _all_of(self, tender: Tender) -> list[FrozenTrial]:
        return self._storage.get_all_trials(tender.study_id, deepcopy=False)  # type: ignore[no-any-return]

    def _fill_for_those_without_room(self, tenders: Mapping[str, Tender], ids: Sequence[str]) -> None:
        """Create a trial of each submission that has found no room for any for longer than the age limit."""
        for submission_id, waited_s in self._patience.exhausted(list(ids), self._clock()).items():
            ticket = self._create(tenders[submission_id])
            if ticket is not None:
                self._loop.enqueue([ticket], waited_s=waited_s)

    def _create(self, tender: Tender) -> Ticket | None:
        if len(tender.trials) < self._made.get(tender.study_id, 0):  # another submission of the study made some
            self._observe(tender)
        try:
            return tender.create()
        except (TransientStorageError, StorageInternalError, StaleLeaderError):
            raise
        except UpdateFinishedTrialError:  # ended from outside a moment after it was born
            return None
        except Exception as error:  # of the study's sampler, which may be anybody's
            _log.exception("%s: its sampler raised", tender.spec.study_name)
            self._loop.move(tender, SubmissionState.FAILING, f"its sampler raised {type(error).__name__}: {error}")
            tender.observe(self._all_of(tender))
            return None


def _waiting(tenders: Sequence[Tender], retries: Sequence[tuple[Tender, Ticket]]) -> list[tuple[Tender, Ticket]]:
    """Return what waits, about in the order of the queue; of submissions that end all was cancelled a moment ago.

    Args:
        tenders: All submissions.
        retries: What was made after their trials had been read.
    """
    found: list[tuple[Tender, Ticket]] = []
    for tender in sorted(tenders, key=lambda item: -item.spec.priority):
        if tender.row.state == SubmissionState.OPEN:
            made = {ticket.number: ticket for other, ticket in retries if other is tender}
            seen = [tender.ticket_of(trial) for trial in tender.waiting() if trial.number not in made]
            found += [(tender, ticket) for ticket in (*made.values(), *seen)]
    return found


def _beside_exclusive(waiting: Sequence[tuple[Tender, Ticket]]) -> int:
    """Return how many other trials were asked for since the first of those that wait for a device of their own."""
    alone: dict[str, list[int]] = {}
    made: dict[str, int] = {}
    for tender, ticket in waiting:
        if ticket.vram_bytes is None:
            alone.setdefault(tender.id, []).append(ticket.number)
            made[tender.id] = len(tender.trials)
    # A retry that was made just now is not among its submission's trials yet.
    return sum(max(0, made[name] - min(numbers) - len(numbers)) for name, numbers in alone.items())


def _call(tender: Tender, ticket: Ticket) -> Waiting:
    avoid = tender.avoid(ticket.number)
    return Waiting(tender.job_id(ticket.number), tender.id, ticket.vram_bytes, avoid)
