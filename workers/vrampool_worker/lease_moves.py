"""Leases that change while their trials run: they shrink for a trial that waits, and grow before a trial must fail.

A trial of which little is known begins with more than it asked for, where that is free: it is lent, and called back as
soon as another one wants it.

A lease shrinks in two steps. The child is asked to give back its cache and to lower its cap; when it has, and says what
its cap has become, the ledger gives the difference away. A child that does not answer keeps its lease.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vrampool.units import format_bytes
from vrampool_worker.asking import Asked
from vrampool_worker.attempts import Attempt, Move, Stage
from vrampool_worker.ledger.shrinking import LEAST_CUT_BYTES, Candidate, floor_of, plan_cuts

if TYPE_CHECKING:
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")

#: A trial that grows gets so much of what it holds now: it then holds 80 % of its lease, and asks again at 90 %.
_GROW_TO = 1.25
#: What a trial that ran alone is left with, in peaks, where a smaller lease was too little for one of its submission.
_KEPT_FACTOR = 2
#: What a child was asked to give back is counted on for so long; then others are asked.
_PATIENCE_S = 5.0


class LeaseMoves:
    """Shrinks and grows leases. Only the main loop calls it."""

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop
        self._on_cpu = loop.device.kind == "cpu"
        self._kept: dict[str, str] = {}
        self._awaits_reading = False

    def keep(self, submission_id: str, reason: str) -> None:
        """Shrink no lease of this submission any more: one of its trials ran out of memory after it was done."""
        if submission_id not in self._kept:
            self._kept[submission_id] = reason
            _log.info("leases of submission %s are not shrunk any more: %s", submission_id, reason)

    def blamed(self, attempt: Attempt) -> None:
        """A trial ran out of memory because its lease was made smaller: that is not done to its submission again.

        The storage keeps it for whoever opens a trial of it later; those who run some now are told.
        """
        reason = f"{attempt.label} ran out of memory after its lease was made smaller"
        self.keep(attempt.ticket.submission_id, reason)
        event = {"keep_leases": attempt.ticket.submission_id, "reason": reason}
        self._loop.queue_lane.submit(lambda: self._loop.port.tell(event), lambda _result, _error: None)

    # ---- lending -------------------------------------------------------------------------------------

    def lend(self, attempt: Attempt, wish_bytes: int | None, now_s: float) -> None:
        """Give a trial that is about to begin more than it asked for, out of what nobody uses.

        Its request is what such a trial mostly needs. That some need more would cost each of those an attempt, and a
        larger request would cost the others their room. Half of what is free is left: mostly the next one fits at
        once. One that is tried again gets all of it: it has failed for want of memory before.

        Args:
            attempt: Not begun yet: its cap is still to be set.
            wish_bytes: What nearly all such trials would do with; None: its request is that.
            now_s: Now.
        """
        # A client of MPS, too: the driver's limit is the lent lease, and torch's cap takes away what is called back.
        if self._on_cpu or attempt.exclusive or attempt.declared or wish_bytes is None:
            return
        lease_bytes = attempt.lease_at_end_bytes
        room_bytes = self._loop.ledger.offer(now_s).room_bytes
        again = attempt.root not in (None, attempt.ticket.number)
        to_bytes = min(wish_bytes, lease_bytes + (room_bytes if again else room_bytes // 2))
        if to_bytes - lease_bytes < LEAST_CUT_BYTES or self._keeps(attempt):
            return
        decision = self._loop.ledger.grow(attempt.lease_id, to_bytes, now_s)
        attempt.lent_bytes = decision.lease_bytes - lease_bytes
        attempt.lease_bytes = attempt.lease_at_end_bytes = decision.lease_bytes

    # ---- shrinking -----------------------------------------------------------------------------------

    def end_exclusivity(self, attempt: Attempt) -> None:
        """Ask a trial that ran alone, and has reported, to make do with what it has needed so far.

        Where leases are kept it is left with twice that, for alone until its end it would keep all others waiting; but
        one that is tried again is left alone.
        """
        loop, keeps = self._loop, self._keeps(attempt)
        if attempt.move is not None or (keeps and attempt.root not in (None, attempt.ticket.number)):
            return
        peak_bytes = loop.memory.peak(attempt)
        lease_bytes = loop.ledger.first_lease(attempt.lease_id, peak_bytes or None)
        if lease_bytes is not None:  # else its memory is not known yet: at the next reading, perhaps
            least_bytes = _KEPT_FACTOR * peak_bytes if keeps else 0
            lease_bytes = min(max(lease_bytes, least_bytes), attempt.lease_at_end_bytes)
            self._ask(attempt, lease_bytes, time.monotonic(), alone=True)

    def make_room(self, asked: Asked, free_bytes: int) -> None:
        """Nothing that waits fits what was offered: make room where that does no harm.

        Args:
            asked: The queue's answer: the trial that the device is kept free for goes first, else the smallest.
            free_bytes: What was offered.
        """
        kept_bytes = asked.earmark.vram_bytes if asked.earmark is not None else None
        wanted_bytes = kept_bytes or asked.smallest_bytes
        now_s = time.monotonic()
        # What was just given back is not counted as free before it is seen to be.
        if wanted_bytes is not None and not self._awaits_reading and not self._loop.ledger.offer(now_s).closed:
            self._make_room(wanted_bytes, free_bytes, now_s)

    def _make_room(self, wanted_bytes: int, free_bytes: int, now_s: float) -> None:
        coming_bytes = sum(
            attempt.lease_at_end_bytes - attempt.move.to_bytes
            for attempt in self._running()
            if attempt.move is not None and now_s - attempt.move.asked_at_s < _PATIENCE_S
        )
        missing_bytes = wanted_bytes - free_bytes - coming_bytes
        for cut in plan_cuts(missing_bytes, self._candidates()):
            attempt = self._loop.attempts[cut.lease_id]
            _log.info(
                "%s is to shrink from %s to %s: a trial waits for %s",
                attempt.label,
                format_bytes(attempt.lease_at_end_bytes),
                format_bytes(cut.to_bytes),
                format_bytes(wanted_bytes),
            )
            self._ask(attempt, cut.to_bytes, now_s)

    def shrinkable_bytes(self) -> int:
        """Return what running trials could give back if somebody needed it."""
        return sum(candidate.slack_bytes for candidate in self._candidates())

    def on_recapped(self, attempt: Attempt, data: Mapping[str, Any], now_s: float) -> None:
        """A child has another cap: what it gave up is given away from now on."""
        loop = self._loop
        cap_bytes, held_bytes = int(data["cap_bytes"]), data["held_bytes"]
        attempt.cap_bytes = cap_bytes
        if held_bytes is not None:
            attempt.sample = dataclasses.replace(attempt.sample, torch_reserved_bytes=int(held_bytes))
        move = attempt.move
        if move is None or data["asked_bytes"] != move.cap_bytes:
            return  # it answers an order that was given before
        attempt.move = None
        if attempt.stage is not Stage.RUNNING:
            return
        before_bytes = attempt.lease_at_end_bytes
        # A child without torch has no cap that counts; its lease is a matter of the books alone.
        allowed_bytes = cap_bytes + loop.ledger.overhead_bytes if data["enforced"] else 0
        if move.alone:
            decision = loop.ledger.report_first(
                attempt.lease_id, loop.memory.peak(attempt) or None, now_s, least_bytes=allowed_bytes
            )
            attempt.exclusive = not decision.granted
            if attempt.exclusive and attempt.child is not None:
                attempt.child.recap(loop.memory.cap(attempt))  # its memory is not known after all
        else:
            measured_bytes = None if held_bytes is None else int(held_bytes) + loop.ledger.overhead_bytes
            decision = loop.ledger.shrink(
                attempt.lease_id, max(move.to_bytes, allowed_bytes), now_s, measured_bytes=measured_bytes
            )
        _log.info("%s: %s", attempt.label, decision.reason)
        attempt.lease_at_end_bytes = decision.lease_bytes
        called_back_bytes = min(attempt.lent_bytes, before_bytes - decision.lease_bytes)
        attempt.lent_bytes -= called_back_bytes
        if called_back_bytes and attempt.shrunk_from_bytes is None:
            before_bytes = attempt.lease_bytes = before_bytes - called_back_bytes  # no more than it had asked for
        if decision.lease_bytes < before_bytes:
            attempt.shrunk_from_bytes = max(attempt.shrunk_from_bytes or 0, before_bytes)
            attempt.ooms_at_shrink = attempt.unhandled_ooms
        loop.keepers_changed()
        self._awaits_reading = True
        loop.sampler.read_soon()  # the device must be seen to have it before it is given away

    def on_reading(self) -> None:
        """The device was read: what was given back is free."""
        if self._awaits_reading:
            self._awaits_reading = False
            self._loop.wake()

    def _ask(self, attempt: Attempt, to_bytes: int, now_s: float, *, alone: bool = False) -> None:
        assert attempt.child is not None
        cap_bytes = self._loop.memory.cap_of(to_bytes)
        attempt.move = Move(to_bytes, cap_bytes, now_s, alone)
        attempt.child.recap(cap_bytes)

    def _candidates(self) -> Iterator[Candidate]:
        overhead_bytes = self._loop.ledger.overhead_bytes
        for attempt in self._running():
            if self._may_shrink(attempt):
                floor_bytes = floor_of(self._loop.memory.peak(attempt), overhead_bytes)
                yield Candidate(attempt.lease_id, attempt.lease_at_end_bytes, floor_bytes)
            elif attempt.lent_bytes and attempt.move is None and attempt.started_at_s is not None:
                own_bytes = attempt.lease_at_end_bytes - attempt.lent_bytes
                held_bytes = floor_of(self._loop.memory.peak(attempt), overhead_bytes)
                yield Candidate(attempt.lease_id, attempt.lease_at_end_bytes, max(own_bytes, held_bytes))

    def _may_shrink(self, attempt: Attempt) -> bool:
        """Only a trial that has been once around, whose peak is known, and whose cap can be lowered."""
        if attempt.exclusive or attempt.move is not None or self._keeps(attempt):
            return False
        if not (attempt.been_around and attempt.settled):
            return False
        if attempt.declared or not self._loop.memory.peak(attempt):
            return False
        return self._on_cpu or (attempt.sample.cuda_initialized and attempt.sample.num_alloc_retries == 0)

    def _keeps(self, attempt: Attempt) -> bool:
        return attempt.ticket.submission_id in self._kept

    def _running(self) -> Iterator[Attempt]:
        for attempt in self._loop.attempts.values():
            if attempt.stage is Stage.RUNNING and attempt.child is not None and attempt.ending is None:
                yield attempt

    # ---- growing -------------------------------------------------------------------------------------

    def on_asked(self, attempt: Attempt, held_bytes: int, now_s: float) -> None:
        """A child holds nearly all of its cap and asks for more: it gets what is free, or a no with the reason."""
        child = attempt.child
        if child is None or attempt.stage is not Stage.RUNNING or attempt.move is not None:
            return  # one that is about to shrink hears of its new cap first, and asks again if it must
        refusal = self._refusal(attempt)
        if not refusal:
            before_bytes = attempt.lease_at_end_bytes
            refusal = self.grow(attempt, held_bytes + self._loop.ledger.overhead_bytes, now_s)
            if attempt.lease_at_end_bytes > before_bytes:
                return
            _log.info("%s: %s", attempt.label, refusal)
        attempt.refused_growth = refusal
        child.stay(refusal)

    def _refusal(self, attempt: Attempt) -> str:
        if attempt.exclusive:
            return "it has all that is free of the device already"
        if attempt.declared:
            return f"its submission says that each trial needs {format_bytes(attempt.lease_at_end_bytes)}"
        return ""

    def grow(self, attempt: Attempt, held_bytes: int, now_s: float) -> str:
        """Give a trial a larger lease for what it holds, as far as there is room; return the ledger's sentence."""
        loop = self._loop
        to_bytes = int(held_bytes * _GROW_TO)
        if attempt.mps:
            to_bytes = min(to_bytes, attempt.mps_limit_bytes)
            if to_bytes <= attempt.lease_at_end_bytes:
                return "the driver holds a client of MPS to what it began with"
        decision = loop.ledger.grow(attempt.lease_id, to_bytes, now_s)
        if decision.lease_bytes > attempt.lease_at_end_bytes:
            _log.info("%s: %s", attempt.label, decision.reason)
            attempt.lease_at_end_bytes = decision.lease_bytes
            attempt.lease_bytes = max(attempt.lease_bytes, decision.lease_bytes)
            if attempt.shrunk_from_bytes is not None and decision.lease_bytes >= attempt.shrunk_from_bytes:
                attempt.shrunk_from_bytes = None  # it has back all that it gave
            loop.keepers_changed()
            if attempt.child is not None:
                attempt.child.recap(loop.memory.cap_of(decision.lease_bytes))
        return decision.reason
