"""What the ledger holds and says: leases, and decisions with their reasons."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol

P = ParamSpec("P")


@dataclass(frozen=True)
class LeaseState:
    """One lease, as it is shown."""

    lease_id: str
    label: str
    lease_bytes: int
    measured_bytes: int | None
    granted_at_s: float
    changed_at_s: float
    alone: bool
    ending: bool


@dataclass
class Lease:
    """Bytes granted to one trial, and what is known of their use. Only the ledger changes it."""

    lease_id: str
    label: str  #: the trial, for people: "digits 12"
    lease_bytes: int
    granted_at_s: float
    changed_at_s: float  #: when the lease last became larger or smaller
    alone: bool = False  #: exclusive, and has not shown its peak yet
    started: bool = False  #: user code runs; before that its context may grow at any moment
    returned: bool = False  #: user code has ended; the process only cleans up
    measured_bytes: int | None = None
    peak_bytes: int | None = None  #: the largest that was measured
    readings_over: int = 0  #: the last so many readings showed it above its lease
    ended_at_s: float | None = None  #: its processes are gone; its memory is awaited
    used_before_bytes: int | None = None  #: by the whole device, at the last reading before that
    residue_bytes: int | None = None  #: the least that seemed to be left of it since its end
    said: str = ""  #: the last decision about it, in words
    unexplained_before_bytes: int = 0  #: of it, what neither it nor anybody else explained
    lowest_rest_bytes: int = 0  #: the least since the grant of what the device's use is beyond all measured trials

    @property
    def work(self) -> str:
        """Name what the trial works on, its study: trials of one study are taken to be alike."""
        return self.label.rpartition("/")[0]

    @property
    def at_work(self) -> bool:
        """Say whether it may compute on the device."""
        return not self.returned and self.ended_at_s is None

    @property
    def counted_bytes(self) -> int:
        """Return what it counts for: its lease, as it may grow to that at any moment, or more if it holds more."""
        return max(self.lease_bytes, self.measured_bytes or 0)

    @property
    def own_bytes(self) -> int:
        """Return what it is taken to hold now: the figure, or up to its lease where there is none."""
        return self.lease_bytes if self.measured_bytes is None else self.measured_bytes

    def explained_bytes(self, rest_bytes: int) -> int:
        """Return how much of the device's use may be its: its figure, or else what was added since its grant.

        A lease alone explains nothing. A row of young trials would else hide a stranger, each in turn.

        Args:
            rest_bytes: What the device's use is beyond all measured trials.
        """
        if self.measured_bytes is not None:
            return self.measured_bytes
        return min(self.lease_bytes, max(0, rest_bytes - self.lowest_rest_bytes)) if self.started else 0

    def shown(self) -> LeaseState:
        """Return it as it is shown."""
        return LeaseState(
            lease_id=self.lease_id,
            label=self.label,
            lease_bytes=self.lease_bytes,
            measured_bytes=self.measured_bytes,
            granted_at_s=self.granted_at_s,
            changed_at_s=self.changed_at_s,
            alone=self.alone,
            ending=self.ended_at_s is not None,
        )


@dataclass(frozen=True)
class Offer:
    """What the device may take now."""

    free_bytes: int  #: 0 when nothing may start, whatever is free
    idle: bool  #: holds nothing, so an exclusive trial may start
    reason: str
    room_bytes: int = 0  #: of `free_bytes`, for others than the trial that the device is kept free for
    closed: bool = field(default=False, compare=False)  #: nothing may start, so that more room would help nobody


@dataclass(frozen=True)
class Decision:
    """An answer to a trial's wish, and its lease after it."""

    granted: bool
    lease_bytes: int
    reason: str


@dataclass(frozen=True)
class Release:
    """The end of a lease, with the proof that the memory came back. Bytes; None on a device that does not tell."""

    lease_id: str
    label: str
    lease_bytes: int
    back_s: float  #: from the end of its processes until its memory was back, or given up
    used_before_bytes: int | None
    used_after_bytes: int | None
    residue_bytes: int | None  #: still in use though its processes are gone; counted as a stranger's from now on
    reason: str


@dataclass(frozen=True)
class LedgerState:
    """All of a ledger, as it is shown."""

    state: str  #: "ready", "draining", "paused", "quarantined" or "blind"
    reason: str
    since_s: float | None  #: of "blind" and "quarantined"
    total_bytes: int
    budget_bytes: int
    free_bytes: int
    strangers_bytes: int
    driver_reserved_bytes: int
    slots: int
    leases: tuple[LeaseState, ...]


class _Book(Protocol):
    _leases: dict[str, Lease]


def kept_in_words(decide: Callable[Concatenate[Any, str, P], Decision]) -> Callable[Concatenate[Any, str, P], Decision]:
    """Have a lease remember the last decision about it that changed something, or changed nothing as was asked."""

    @functools.wraps(decide)
    def remembering(book: _Book, lease_id: str, /, *args: P.args, **kwargs: P.kwargs) -> Decision:
        before = book._leases.get(lease_id)
        before_bytes, was_alone = (before.lease_bytes, before.alone) if before else (None, None)
        decision = decide(book, lease_id, *args, **kwargs)
        lease = book._leases.get(lease_id)
        if lease is not None and (
            not decision.granted or (lease.lease_bytes, lease.alone) != (before_bytes, was_alone)
        ):
            lease.said = decision.reason
        return decision

    return remembering
