"""Which leases are made smaller so that a waiting trial fits, and how small. Pure.

A lease is cut only for a trial that waits, only as far as that trial needs, and never below what its own trial has
needed so far and a margin: what is left to it is what it will not miss.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vrampool.units import MIB
from vrampool_worker.ledger.strangers import NOISE_BYTES

#: A trial that has reported has been once around: training, evaluation, the last odd batch. More than 1 / 0.9, or it
#: would ask to grow again at its next peak.
_FACTOR = 1.15
_LEAST_MARGIN_BYTES = 64 * MIB
#: A smaller gain is not worth that a trial's allocator gives back its cache.
LEAST_CUT_BYTES = 64 * MIB


@dataclass(frozen=True)
class Candidate:
    """A lease that may be made smaller."""

    lease_id: str
    lease_bytes: int
    floor_bytes: int

    @property
    def slack_bytes(self) -> int:
        """Return what it can give, 0 when that is not worth it."""
        slack_bytes = self.lease_bytes - self.floor_bytes
        return slack_bytes if slack_bytes >= LEAST_CUT_BYTES else 0


@dataclass(frozen=True)
class Cut:
    """A lease that is to be made smaller."""

    lease_id: str
    to_bytes: int


def floor_of(peak_bytes: int, overhead_bytes: int) -> int:
    """Return the smallest lease of a trial that has reported.

    Args:
        peak_bytes: The most it was seen to hold, overhead included.
        overhead_bytes: What of that does not grow with the trial; no margin is taken of it.
    """
    own_bytes = max(0, peak_bytes - overhead_bytes)
    bytes_ = min(peak_bytes, overhead_bytes) + max(int(own_bytes * _FACTOR), own_bytes + _LEAST_MARGIN_BYTES)
    return -(-bytes_ // MIB) * MIB


def plan_cuts(missing_bytes: int, candidates: Iterable[Candidate]) -> list[Cut]:
    """Return the cuts that free so many bytes: of as few leases as can be, the last one only as far as needed.

    Nothing when all of them together cannot: a lease made smaller in vain is a risk for nothing.
    """
    usable = sorted((item for item in candidates if item.slack_bytes), key=lambda item: -item.slack_bytes)
    slack_bytes = sum(item.slack_bytes for item in usable)
    if missing_bytes <= 0 or slack_bytes < missing_bytes:
        return []
    # Figures of different moments differ by some MiB; a trial that then just does not fit would cost another round.
    left_bytes = min(missing_bytes + NOISE_BYTES, slack_bytes)
    cuts = []
    for item in usable:
        given_bytes = min(item.slack_bytes, max(left_bytes, LEAST_CUT_BYTES))
        cuts.append(Cut(item.lease_id, item.lease_bytes - given_bytes))
        left_bytes -= given_bytes
        if left_bytes <= 0:
            break
    return cuts
