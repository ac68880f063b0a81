"""What may start on a device, and why not more: pure. The ledger grants by what this says."""

from __future__ import annotations

from vrampool.units import format_bytes
from vrampool_worker.ledger import words
from vrampool_worker.ledger.accounts import Accounts
from vrampool_worker.ledger.blocks import Blocks
from vrampool_worker.ledger.concurrency import Concurrency
from vrampool_worker.ledger.earmarks import Earmark
from vrampool_worker.ledger.leases import Offer


class Admission:
    """Questions about what may start, answered with a sentence.

    Args:
        label: The device in sentences.
        budget_bytes: How much of it may be in use.
        max_trials: Trials at once.
        accounts: Its accounts.
        blocks: What stops it.
        concurrency: Says how many trials at once it gains from; None: memory and `max_trials` alone decide.
    """

    def __init__(
        self,
        label: str,
        budget_bytes: int,
        max_trials: int,
        accounts: Accounts,
        blocks: Blocks,
        concurrency: Concurrency | None,
    ) -> None:
        self.earmark: Earmark | None = None  #: the trial that the device is kept free for
        self.max_trials = max_trials
        self._label = label
        self._budget_bytes = budget_bytes
        self._accounts = accounts
        self._blocks = blocks
        self._concurrency = concurrency

    def offer(self, now_s: float) -> Offer:
        """Say what may be taken now."""
        obstacle = self._obstacle()
        if obstacle:
            return Offer(0, False, obstacle, closed=True)
        free_bytes = self._accounts.free_bytes(now_s)
        idle = not self._accounts.leases and free_bytes > 0
        room_bytes = self.room_bytes(now_s) if self.earmark else free_bytes
        return Offer(free_bytes, idle, self.room_words(now_s), room_bytes)

    def room_bytes(self, now_s: float) -> int:
        """Return what is free for others than the trial that the device is kept free for."""
        return self._accounts.room_beside_bytes(self.earmark, now_s)

    def room_words(self, now_s: float) -> str:
        """Say what is free, who holds the rest, and for whom the device is kept free."""
        room_words = self._accounts.room_words(now_s)
        return f"{self.earmark_words}: {room_words}" if self.earmark else room_words

    @property
    def earmark_words(self) -> str:
        """Say for whom the device is kept free; empty when it is for none."""
        return words.kept(self._label, self.earmark) if self.earmark else ""

    def explain(self, request_bytes: int | None, now_s: float) -> str:
        """Say in one sentence why such a trial waits for this device, or that it does not."""
        wish = words.wish(request_bytes)
        if request_bytes is not None and request_bytes > self._budget_bytes:
            return f"never fits {self._label}: it asks for {wish} of a budget of {format_bytes(self._budget_bytes)}"
        obstacle = self._obstacle()
        if obstacle:
            return f"waits for {wish}: {obstacle}"
        leases = self._accounts.leases
        if request_bytes is None and leases and not self.earmark:
            return f"waits for {wish}: {words.trials(len(leases))} still on {self._label}"
        alone_beside = request_bytes is None and self.earmark is not None
        if alone_beside or (request_bytes or 1) > self.room_bytes(now_s):
            return f"waits for {wish}: {self.room_words(now_s)}"
        return f"could start now: {self.room_words(now_s)}"

    def _obstacle(self) -> str:
        """Say why nothing may start whatever is free; empty when something may."""
        stopped = self._blocks.gravest
        if stopped:
            return f"{self._label} is {stopped}: {self._blocks.reason(stopped)}"
        if self._accounts.reading is None:
            return f"{self._label} has not been read yet"
        leases = self._accounts.leases
        alone = next((lease for lease in leases.values() if lease.alone), None)
        if alone is not None:
            return f"{alone.label} runs alone on {self._label} until its memory is known"
        if len(leases) >= self.max_trials:
            return f"{self._label} runs {len(leases)} of at most {words.trials(self.max_trials)}"
        at_work = sum(lease.at_work for lease in leases.values())  # the others' multiprocessors are free
        gains_nothing = self._concurrency.obstacle(at_work) if self._concurrency is not None else ""
        return f"{self._label}: {gains_nothing}" if gains_nothing else ""
