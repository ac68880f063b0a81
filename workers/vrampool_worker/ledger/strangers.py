"""How much of a GPU is used by programs that are not ours: an estimate that own trials' growth must not spoil.

Use of the device and the trials' own figures are read at different moments. So a difference between them is only
believed after the device has been quiet, and then held at its maximum for a while: a stranger often comes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from vrampool.units import MIB
from vrampool_worker.ledger.leases import Lease

#: Changes up to this between two readings are noise.
NOISE_BYTES = 64 * MIB
#: Quiet is believed after so long: a trial's own figure may be one reading late, and its thread slow to write it.
QUIET_S = 2.0


class Strangers:
    """The estimate for one device.

    Args:
        hold_s: How long the largest estimate counts.
    """

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._estimates: deque[tuple[float, int]] = deque()
        self._used_bytes: int | None = None
        self._figures: dict[str, int | None] = {}
        self._quiet_since_s: float | None = None
        self.latest_bytes = 0
        self.quiet = False  #: at the last reading: what the device and the trials say belongs together

    def note(self, used_bytes: int, leases: Collection[Lease], at_s: float) -> None:
        """Learn from a reading, taken at `at_s`; the leases hold the trials' figures of that time."""
        self.quiet = self._is_quiet(used_bytes, leases, at_s)
        self._used_bytes = used_bytes
        self._figures = {lease.lease_id: lease.measured_bytes for lease in leases}
        if leases and not self.quiet:
            return
        most_bytes = max(0, used_bytes - sum(lease.measured_bytes or 0 for lease in leases))
        least_bytes = max(0, used_bytes - sum(lease.explained_bytes(most_bytes) for lease in leases))
        if any(lease.measured_bytes is None for lease in leases):
            # Such a trial holds anything from nothing to what was added since its grant: keep the estimate if it fits.
            self._learn(min(max(self.latest_bytes, least_bytes), most_bytes), at_s)
        else:
            self._learn(most_bytes, at_s)

    def learn_residue(self, residue_bytes: int, at_s: float) -> None:
        """Count what a trial left behind; it stays in use, and nobody of ours holds it."""
        self._learn(self.latest_bytes + residue_bytes, at_s)

    def held_bytes(self, now_s: float) -> int:
        """Return the largest estimate of the last `hold_s`, or the last one if it is older."""
        return max(
            (value for at_s, value in self._estimates if now_s - at_s <= self._hold_s), default=self.latest_bytes
        )

    def _learn(self, estimate_bytes: int, at_s: float) -> None:
        self.latest_bytes = estimate_bytes
        # Only the falling edge is kept: an older, smaller estimate can never be the maximum again.
        while self._estimates and self._estimates[-1][1] <= estimate_bytes:
            self._estimates.pop()
        self._estimates.append((at_s, estimate_bytes))
        while at_s - self._estimates[0][0] > self._hold_s:
            self._estimates.popleft()

    def _is_quiet(self, used_bytes: int, leases: Collection[Lease], at_s: float) -> bool:
        if self._is_disturbed(used_bytes, leases):
            self._quiet_since_s = None
            return False
        if self._quiet_since_s is None:
            self._quiet_since_s = at_s
        return at_s - self._quiet_since_s >= QUIET_S

    def _is_disturbed(self, used_bytes: int, leases: Collection[Lease]) -> bool:
        if self._used_bytes is None or abs(used_bytes - self._used_bytes) > NOISE_BYTES:
            return True
        if self._figures.keys() != {lease.lease_id for lease in leases}:
            return True
        return any(
            not lease.started
            or lease.ended_at_s is not None
            or _moved(self._figures[lease.lease_id], lease.measured_bytes)
            for lease in leases
        )


def _moved(before: int | None, after: int | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) > NOISE_BYTES
