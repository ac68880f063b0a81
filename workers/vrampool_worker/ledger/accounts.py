"""The accounts of one device: its last reading, the leases, strangers, and what is left of the budget. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from vrampool.units import format_bytes
from vrampool_worker.devices.base import DeviceReading
from vrampool_worker.ledger import words
from vrampool_worker.ledger.earmarks import Earmark, room_beside
from vrampool_worker.ledger.leases import Lease
from vrampool_worker.ledger.overhead import Overhead
from vrampool_worker.ledger.residues import Residues
from vrampool_worker.ledger.strangers import NOISE_BYTES, Strangers

#: What nobody explains must have been seen in so many readings before it is not held against a trial that ends.
_READINGS = 3


class Accounts:
    """Sums of one device; the ledger decides on them.

    On the CPU everything else on the host lives in the part outside the budget first; only what goes beyond that
    counts as strangers'. So it is on a card that is shared: that part belongs to the other workers on it.
    """

    def __init__(
        self, label: str, total_bytes: int, budget_bytes: int, *, on_cpu: bool, shared: bool, hold_s: float
    ) -> None:
        self.leases: dict[str, Lease] = {}
        self.reading: DeviceReading | None = None
        self.read_at_s = 0.0
        self.driver_reserved_bytes = 0
        self.overhead = Overhead()
        self.residues = Residues()
        self._label = label
        self._outside_bytes = total_bytes - budget_bytes
        self._budget_bytes = budget_bytes
        self._on_cpu = on_cpu
        self._shared = shared
        self._strangers = Strangers(hold_s)
        self._unexplained: deque[int] = deque(maxlen=_READINGS)

    @property
    def used_bytes(self) -> int | None:
        """Return the device's use at the last reading; None where it does not tell."""
        return self.reading.used_bytes if self.reading else None

    def note(self, reading: DeviceReading, measured: Mapping[str, int | None], now_s: float) -> None:
        """Take in a reading and the trials' figures of that moment, by lease id."""
        self.reading, self.read_at_s = reading, now_s
        if reading.driver_reserved_bytes is not None:
            self.driver_reserved_bytes = reading.driver_reserved_bytes
        for lease_id, figure_bytes in measured.items():
            lease = self.leases.get(lease_id)
            if lease is not None and lease.ended_at_s is None:
                lease.measured_bytes = figure_bytes
                lease.peak_bytes = max(lease.peak_bytes or 0, figure_bytes or 0) or None
                over = (figure_bytes or 0) > lease.lease_bytes + NOISE_BYTES
                lease.readings_over = lease.readings_over + 1 if over else 0
        if reading.used_bytes is None or self._on_cpu:
            return
        rest_bytes = self.rest_bytes(reading.used_bytes)
        for lease in self.leases.values():
            lease.lowest_rest_bytes = min(lease.lowest_rest_bytes, rest_bytes)
        self._strangers.note(reading.used_bytes, self.leases.values(), now_s)
        self.residues.seen(self._strangers.latest_bytes)
        self._unexplained.append(self._unexplained_bytes(reading.used_bytes, self.leases.values()))

    def trespasser(self) -> str | None:
        """Return the lease of a trial that must be ended for its neighbours' sake; None: there is none.

        Only torch's allocator is held to a cap. What another library takes shows when it is there. As long as the
        budget holds that harms nobody; beyond it the card runs full, and whoever asks next fails. So of those that were
        above their leases in several readings the worst is named, and only while all together are beyond the budget.
        """
        if self._on_cpu or self.used_bytes is None:
            return None
        held_bytes = sum(lease.measured_bytes or 0 for lease in self.leases.values())
        others_bytes = self.driver_reserved_bytes + self.strangers_bytes(self.read_at_s)
        # Strangers count by their largest use of a while ago, so the card must be full now as well.
        is_full = self.used_bytes + self.driver_reserved_bytes >= self._budget_bytes
        if held_bytes + others_bytes <= self._budget_bytes or not is_full:
            return None
        over = [lease for lease in self.leases.values() if lease.readings_over >= _READINGS]
        worst = max(over, key=lambda lease: (lease.measured_bytes or 0) - lease.lease_bytes, default=None)
        return worst.lease_id if worst else None

    def rest_bytes(self, used_bytes: int) -> int:
        """Return what of the device's use is beyond all trials that live and are measured."""
        return max(
            0, used_bytes - sum(item.measured_bytes or 0 for item in self.leases.values() if not item.ended_at_s)
        )

    def free_bytes(self, now_s: float) -> int:
        """Return what is left to be given away."""
        return max(0, self.most_bytes(now_s) - self._unclear_bytes(now_s) - self._counted_bytes())

    def most_bytes(self, now_s: float) -> int:
        """Return what would be free if no trial were on the device."""
        return max(0, self._budget_bytes - self.driver_reserved_bytes - self.strangers_bytes(now_s))

    def room_beside_bytes(self, earmark: Earmark | None, now_s: float) -> int:
        """Return what is free for others than the trial that the device is kept free for, if there is one."""
        free_bytes = self.free_bytes(now_s)
        if earmark is None:
            return free_bytes
        most_bytes = self.most_bytes(now_s) - self._unclear_bytes(now_s)
        held = [lease.counted_bytes for lease in self.leases.values()]
        return min(free_bytes, room_beside(held, most_bytes, earmark.request_bytes))

    def strangers_bytes(self, now_s: float) -> int:
        """Return what other programs hold, as far as it concerns the budget."""
        if not self._on_cpu:
            held_bytes = self._strangers.held_bytes(now_s)
            if not self._shared:
                return held_bytes
            # What our own trials left behind is not the other workers', whose part lies outside of this budget.
            left_bytes = min(self.residues.left_bytes, held_bytes)
            return left_bytes + max(0, held_bytes - left_bytes - self._outside_bytes)
        known_bytes = sum(lease.measured_bytes or 0 for lease in self.leases.values())
        return max(0, (self.used_bytes or 0) - known_bytes - self._outside_bytes)

    def room_words(self, now_s: float) -> str:
        """Say what is free and who holds the rest."""
        unclear_bytes = self._unclear_bytes(now_s)
        if unclear_bytes <= NOISE_BYTES:
            unclear_bytes = 0  # not worth a word
        strangers_bytes = self.strangers_bytes(now_s)
        left_bytes = min(self.residues.left_bytes, strangers_bytes)
        held_by = words.holders(len(self.leases), self._counted_bytes(), strangers_bytes - left_bytes, unclear_bytes)
        if left_bytes:
            held_by += f"{', ' if held_by else ''}{format_bytes(left_bytes)} left behind by ended trials"
        return words.room(self._label, self.free_bytes(now_s), self._budget_bytes, held_by)

    def lone_bytes(self) -> int:
        """Return what a trial that is alone on the device holds: all that is used and no stranger's."""
        if self.used_bytes is None or self._on_cpu:
            return 0
        return max(0, self.used_bytes - self._strangers.latest_bytes)

    def learn_overhead(self, lease: Lease, torch_reserved_bytes: int) -> None:
        """Learn the overhead from a trial's report; only a quiet device tells: there both figures are of one state."""
        if self._on_cpu or self.used_bytes is None or not torch_reserved_bytes or not self._strangers.quiet:
            return
        if lease.measured_bytes is not None:
            self.overhead.learn(lease.measured_bytes, torch_reserved_bytes)
        elif len(self.leases) == 1:
            self.overhead.learn(self.lone_bytes(), torch_reserved_bytes)

    def end(self, lease: Lease, now_s: float) -> None:
        """Note that a trial's processes are gone, and what nobody explained while it lived.

        That is not left behind by it: a stranger not yet believed in. But it must have been there for some readings, or
        it may be what the trial itself took just before its end.
        """
        lease.ended_at_s = now_s
        lease.used_before_bytes = self.used_bytes
        if lease.measured_bytes is not None and len(self._unexplained) == _READINGS:
            lease.unexplained_before_bytes = min(self._unexplained)

    def residue_bytes(self, ended: Lease, used_bytes: int) -> int:
        """Return what of the device's use is left of a trial that is gone: the least of all readings since its end.

        A neighbour that grows makes it look like more for a moment, until its own report comes.
        """
        # What others that are gone held explains nothing any more: it would hide what this one has left behind.
        others = [lease for lease in self.leases.values() if lease.ended_at_s is None]
        seen_bytes = max(0, self._unexplained_bytes(used_bytes, others) - ended.unexplained_before_bytes)
        ended.residue_bytes = seen_bytes if ended.residue_bytes is None else min(ended.residue_bytes, seen_bytes)
        return ended.residue_bytes

    def _unexplained_bytes(self, used_bytes: int, leases: Iterable[Lease]) -> int:
        return max(0, used_bytes - self._strangers.latest_bytes - sum(lease.own_bytes for lease in leases))

    def release(self, ended: Lease, residue_bytes: int, now_s: float) -> str:
        """Drop a lease. A residue is a stranger's from now on: it stays in use, and nobody of ours holds it.

        Returns why the device must take nothing more, or nothing.
        """
        del self.leases[ended.lease_id]
        quarantine = self.residues.note(ended.label, residue_bytes)
        if residue_bytes > NOISE_BYTES:
            self._strangers.learn_residue(residue_bytes, now_s)
        if ended.measured_bytes is None:
            # What it held was in the rest that others are compared with. It is not any more, and nobody knows how much.
            for lease in self.leases.values():
                lease.lowest_rest_bytes = max(0, lease.lowest_rest_bytes - ended.lease_bytes)
        return quarantine

    def _counted_bytes(self) -> int:
        return sum(lease.counted_bytes for lease in self.leases.values())

    def _unclear_bytes(self, now_s: float) -> int:
        """Return use that neither trials nor strangers explain yet: our own that grew since, or a new stranger's.

        It is in nobody's account and not held, but it is not there to be given away either.
        """
        used_bytes = self.used_bytes
        if used_bytes is None or self._on_cpu:
            return 0
        rest_bytes = self.rest_bytes(used_bytes)
        explained_bytes = sum(lease.explained_bytes(rest_bytes) for lease in self.leases.values())
        return max(0, used_bytes - explained_bytes - self._strangers.held_bytes(now_s))
