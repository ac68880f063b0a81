"""What earlier trials needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class PastPeak(NamedTuple):
    """What one earlier or running trial of the study needed, as its device saw it."""

    peak_bytes: int
    #: It ended early (failed, killed, out of memory) or retried allocations: a lower bound only. A running trial
    #: that has reported has been through a whole round, so its peak counts as seen.
    censored: bool = False
    params: Mapping[str, Any] | None = None
    overhead_bytes: int | None = None  #: of the peak, what its process holds whatever its parameters are
    device: str = ""  #: kind of device it ran on
    asked_bytes: int = 0  #: out of memory by its own fault: the allocation that failed
    finished: bool = False  #: censored, but its objective ended well: it needed little more than this

    @property
    def at_least_bytes(self) -> int:
        """What it needed at the least."""
        return self.peak_bytes + self.asked_bytes


class Taught(NamedTuple):
    """The peaks from which the requests of a submission are learned."""

    own: tuple[PastPeak, ...] = ()  #: of its study
    others: tuple[PastPeak, ...] = ()  #: of other studies with the same code, on the same kind of device

    @property
    def peaks(self) -> tuple[PastPeak, ...]:
        return (*self.others, *self.own)
