"""The ledger of one device: who holds how much of its budget, and who may have more. Pure, no I/O.

Events go in (`observe`, `blind`, `ending`), questions are answered (`offer`, `explain`); decisions carry a sentence.
Times are seconds of one clock, the readings' `time.monotonic()`; not thread-safe, as one loop owns it.
"""

from __future__ import annotations

from collections.abc import Mapping

from vrampool.memory.requests import lease_after_first_report
from vrampool.units import MIB, format_bytes
from vrampool_worker.devices.base import DeviceReading
from vrampool_worker.ledger import words
from vrampool_worker.ledger.accounts import Accounts
from vrampool_worker.ledger.admission import Admission
from vrampool_worker.ledger.blocks import Blocks
from vrampool_worker.ledger.concurrency import Concurrency
from vrampool_worker.ledger.earmarks import Earmark
from vrampool_worker.ledger.leases import Decision, Lease, LedgerState, Offer, Release, kept_in_words
from vrampool_worker.ledger.overhead import Overhead
from vrampool_worker.ledger.strangers import NOISE_BYTES

#: A lease that cannot grow by so much, or by all that was asked for, does not grow.
_LEAST_GROWTH_BYTES = 16 * MIB


class Ledger:
    """Leases and policies of one device.

    free = budget - driver's part - strangers - the sum over trials of the larger of lease and measured use. A trial
    that has not grown yet counts by its lease. Use that nobody explains stops admission at once, though it is believed
    to be a stranger's only after a while: so nothing is granted that is not physically there.

    Args:
        device_id, total_bytes: The device's id and memory.
        budget_bytes, max_trials: How much of it may be in use, and by how many trials at once.
        label: The device in sentences; None: its id.
        kind: "cuda" or "cpu".
        shared: Other workers have the rest of the device: what they use of it leaves this budget alone.
        hold_s: How long the largest estimate of strangers counts.
        give_back_s: How long a dead trial's memory is awaited before it is counted as residue.
        concurrency: Says how many trials at once the device gains from; None: memory and `max_trials` alone decide.
    """

    def __init__(
        self,
        device_id: str,
        total_bytes: int,
        budget_bytes: int,
        max_trials: int,
        *,
        label: str | None = None,
        kind: str = "cuda",
        shared: bool = False,
        hold_s: float = 60.0,
        give_back_s: float = 30.0,
        concurrency: Concurrency | None = None,
    ) -> None:
        self.device_id = device_id
        self.total_bytes = total_bytes
        self.budget_bytes = budget_bytes
        self._label = label or device_id
        self._on_cpu = kind == "cpu"
        self._give_back_s = give_back_s
        self._concurrency = concurrency
        self._accounts = Accounts(
            self._label, total_bytes, budget_bytes, on_cpu=self._on_cpu, shared=shared, hold_s=hold_s
        )
        self._leases = self._accounts.leases
        self._blocks = Blocks(self._accounts.residues)
        self._admission = Admission(self._label, budget_bytes, max_trials, self._accounts, self._blocks, concurrency)

    # -- what is learned ------------------------------------------------------------------------------------------

    def observe(self, reading: DeviceReading, measured: Mapping[str, int | None], now_s: float) -> None:
        """Learn from a reading.

        Args:
            reading: What the device said.
            measured: What each trial holds, by lease id; None: not known now. One that is not named keeps its figure.
            now_s: Now.
        """
        if reading.fault:
            self.blind(reading.fault, now_s)
            return
        self._blocks.lift("blind")
        self._accounts.note(reading, measured, now_s)
        self._blocks.lift_if_gone()
        if self._concurrency is not None:
            running = {lease.lease_id: lease.work for lease in self._leases.values() if lease.at_work}
            self._concurrency.observe(running, reading.utilisation, now_s)

    def progressed(self, lease_id: str, count: int, now_s: float) -> None:
        """Learn what a trial has counted so far, optimizer steps or reports: from that its speed is known."""
        if self._concurrency is not None:
            self._concurrency.progressed(lease_id, count, now_s)

    def learn_overhead(self, lease_id: str, torch_reserved_bytes: int) -> None:
        """Learn what the driver holds for a process, from a trial's own report of torch's allocator, made just now."""
        self._accounts.learn_overhead(self._leases[lease_id], torch_reserved_bytes)

    def blind(self, reason: str, now_s: float) -> None:
        """Stop admission until the next reading: the device cannot be read. Running trials go on."""
        self._blocks.put("blind", reason, now_s)

    def quarantine(self, reason: str, now_s: float) -> None:
        """Take nothing new until `resume`: something on the device is beyond our control."""
        self._blocks.quarantine(reason, now_s)

    def pause(self, reason: str | None) -> None:
        """Take nothing new until `resume`, or until this is called with None."""
        if reason is None:
            self._blocks.lift("paused")
        else:
            self._blocks.put("paused", reason, None)

    def drain(self, reason: str) -> None:
        """Take nothing new, as the worker ends after its running trials."""
        self._blocks.put("draining", reason, None)

    def resume(self) -> None:
        """Take trials again after `quarantine`, `pause` or `drain`; a blind device stays so until it is read.

        One that is quarantined for what its trials left behind stays so until that is gone, and takes trials then.
        """
        self._blocks.resume()

    # -- what may start -------------------------------------------------------------------------------------------

    def offer(self, now_s: float) -> Offer:
        """Say what may be taken now."""
        return self._admission.offer(now_s)

    @property
    def earmark(self) -> Earmark | None:
        """Return the trial that the device is kept free for."""
        return self._admission.earmark

    def keep_for(self, earmark: Earmark | None) -> bool:
        """Keep the device free for a trial, or for none any more: others get what does not delay it. True: it is news.

        The trial itself may be granted once this was called with None, as it is when it was taken.
        """
        is_news = earmark != self._admission.earmark
        self._admission.earmark = earmark
        return is_news

    def said(self, lease_id: str) -> str:
        """Return what was last decided about a trial, in words; empty where there is no such lease."""
        lease = self._leases.get(lease_id)
        return lease.said if lease else ""

    def most_bytes(self, now_s: float) -> int:
        """Return what would be free if no trial were on the device, whether it takes trials now or not."""
        return self._accounts.most_bytes(now_s)

    @kept_in_words
    def grant(self, lease_id: str, request_bytes: int | None, *, label: str, now_s: float) -> Decision:
        """Give a trial a lease, if it fits.

        Args:
            lease_id: New, and the trial's own.
            request_bytes: None: exclusive, which gets all that is free of an idle device.
            label: The trial, for people.
            now_s: Now.

        Raises:
            ValueError: the lease id is in use.
        """
        if lease_id in self._leases:
            raise ValueError(f"lease {lease_id} is in use")
        offer = self.offer(now_s)
        if request_bytes is None:
            fits, lease_bytes = offer.idle and self.earmark is None, offer.free_bytes
        else:
            fits, lease_bytes = 0 < request_bytes <= offer.room_bytes, request_bytes
        if not fits:
            return Decision(False, 0, self.explain(request_bytes, now_s))
        self._leases[lease_id] = Lease(
            lease_id=lease_id,
            label=label,
            lease_bytes=lease_bytes,
            granted_at_s=now_s,
            changed_at_s=now_s,
            alone=request_bytes is None,
            lowest_rest_bytes=self._accounts.rest_bytes(self._accounts.used_bytes or 0),
        )
        if request_bytes is None:
            return Decision(True, lease_bytes, f"runs alone on {self._label} until its memory is known")
        return Decision(True, lease_bytes, f"gets {format_bytes(lease_bytes)}; {self._accounts.room_words(now_s)}")

    def cancel(self, lease_id: str) -> None:
        """Take back a lease whose trial was never started: it touched no memory."""
        self._leases.pop(lease_id, None)

    def explain(self, request_bytes: int | None, now_s: float) -> str:
        """Say in one sentence why such a trial waits for this device, or that it does not."""
        return self._admission.explain(request_bytes, now_s)

    # -- while it runs --------------------------------------------------------------------------------------------

    def confirm_started(self, lease_id: str) -> None:
        """Note that the trial's user code runs, with its cap set."""
        self._leases[lease_id].started = True

    def returned(self, lease_id: str) -> None:
        """Note that the trial's objective has ended: the device has room for another one's work."""
        self._leases[lease_id].returned = True

    def first_lease(self, lease_id: str, peak_bytes: int | None) -> int | None:
        """Return what a trial that ran alone will be left with: its peak plus a margin. None: that is not known yet.

        Args:
            lease_id: The trial's.
            peak_bytes: Its peak so far as the child says, overhead included; None: not known. The ledger's own figures
                are used too, and the device's whole use where there are none: the trial is alone on it.
        """
        lease = self._leases[lease_id]
        known_bytes = max(peak_bytes or 0, lease.peak_bytes or 0) or self._accounts.lone_bytes()
        return min(lease.lease_bytes, lease_after_first_report(known_bytes)) if known_bytes else None

    @kept_in_words
    def report_first(self, lease_id: str, peak_bytes: int | None, now_s: float, *, least_bytes: int = 0) -> Decision:
        """End a trial's exclusivity, at its first report: its lease falls to its peak plus a margin.

        Args:
            lease_id, peak_bytes, now_s: As for `first_lease`, and now.
            least_bytes: What the child's cap lets it have by now: it may have grown since it was asked to lower it.
        """
        lease = self._leases[lease_id]
        if not lease.alone:
            return Decision(True, lease.lease_bytes, "did not run alone")
        first_bytes = self.first_lease(lease_id, peak_bytes)
        if first_bytes is None:
            return Decision(False, lease.lease_bytes, f"stays alone on {self._label}: its memory is not known")
        lease.alone, lease.changed_at_s = False, now_s
        lease.lease_bytes = min(lease.lease_bytes, max(first_bytes, least_bytes))
        return Decision(
            True,
            lease.lease_bytes,
            f"runs alone no longer: its lease is {format_bytes(lease.lease_bytes)}, what it held and a margin",
        )

    @kept_in_words
    def shrink(self, lease_id: str, to_bytes: int, now_s: float, *, measured_bytes: int | None = None) -> Decision:
        """Make a lease smaller, once the child has confirmed its lower cap.

        Args:
            lease_id: The trial's.
            to_bytes: The new lease; it never falls below what the trial holds.
            now_s: Now.
            measured_bytes: What it holds after it gave back its cache; None: as last observed.
        """
        lease = self._leases[lease_id]
        if measured_bytes is not None:
            lease.measured_bytes = measured_bytes
        before_bytes = lease.lease_bytes
        lease.lease_bytes = min(before_bytes, max(to_bytes, lease.measured_bytes or 0))
        if lease.lease_bytes == before_bytes:
            return Decision(False, before_bytes, f"holds {format_bytes(lease.measured_bytes)} of its lease")
        lease.changed_at_s = now_s
        return Decision(True, lease.lease_bytes, f"gave back {format_bytes(before_bytes - lease.lease_bytes)}")

    @kept_in_words
    def grow(self, lease_id: str, to_bytes: int, now_s: float) -> Decision:
        """Make a lease larger, as far as there is room; the decision says by how much."""
        lease = self._leases[lease_id]
        wanted_bytes = to_bytes - lease.lease_bytes
        if wanted_bytes <= 0:
            return Decision(True, lease.lease_bytes, "has that much already")
        for block in ("quarantined", "blind"):  # a trial that runs may still grow while nothing new is taken
            if block in self._blocks:
                return Decision(False, lease.lease_bytes, f"cannot grow: {self._label} is {block}")
        # What it holds beyond its lease is taken off the room already.
        room_bytes = self._admission.room_bytes(now_s) + lease.counted_bytes - lease.lease_bytes
        given_bytes = min(wanted_bytes, max(0, room_bytes))
        if given_bytes < min(wanted_bytes, _LEAST_GROWTH_BYTES):  # crumbs would have it ask again and again
            room = self._admission.room_words(now_s)
            return Decision(False, lease.lease_bytes, f"cannot grow to {format_bytes(to_bytes)}: {room}")
        lease.lease_bytes += given_bytes
        lease.changed_at_s = now_s
        if given_bytes == wanted_bytes:
            return Decision(True, lease.lease_bytes, f"grew to {format_bytes(lease.lease_bytes)}")
        room = f"{format_bytes(to_bytes)} asked for: {self._admission.room_words(now_s)}"
        return Decision(True, lease.lease_bytes, f"grew only to {format_bytes(lease.lease_bytes)} of {room}")

    def over(self, lease_id: str) -> bool:
        """Say whether a trial holds more than its lease. On the CPU, where no cap is enforced, it is then stopped."""
        lease = self._leases[lease_id]
        return lease.measured_bytes is not None and lease.measured_bytes > lease.lease_bytes

    def measured(self, lease_id: str) -> int | None:
        """Return what a trial holds by the last reading; None where that is not known, or there is no such lease."""
        lease = self._leases.get(lease_id)
        return lease.measured_bytes if lease else None

    # -- how it ends ----------------------------------------------------------------------------------------------

    def ending(self, lease_id: str, now_s: float) -> None:
        """Note that the trial's processes are all gone; its lease stays until `settle` sees the memory back."""
        lease = self._leases[lease_id]
        if lease.ended_at_s is None:
            self._accounts.end(lease, now_s)

    def settle(self, lease_id: str, reading: DeviceReading, now_s: float) -> Release | None:
        """Release a lease if the memory is back, or given up; None: not yet.

        Only a reading that was begun after the end counts. It should have gone through `observe` as well.

        Raises:
            ValueError: the trial has not ended.
        """
        lease = self._leases[lease_id]
        if lease.ended_at_s is None:
            raise ValueError(f"the trial of lease {lease_id} has not ended")
        if reading.fault or reading.at_s < lease.ended_at_s:
            return None
        back_s = now_s - lease.ended_at_s
        residue_bytes: int | None = None
        if self._on_cpu:
            residue_bytes = 0  # host memory is back when its processes are gone
        elif reading.used_bytes is not None:
            residue_bytes = self._accounts.residue_bytes(lease, reading.used_bytes)
            if residue_bytes > NOISE_BYTES and back_s < self._give_back_s:
                return None
        growing = self._accounts.release(lease, residue_bytes or 0, now_s)
        if growing:
            self._blocks.quarantine(growing, now_s, for_residue=True)
        return Release(
            lease_id=lease_id,
            label=lease.label,
            lease_bytes=lease.lease_bytes,
            back_s=back_s,
            used_before_bytes=lease.used_before_bytes,
            used_after_bytes=reading.used_bytes,
            residue_bytes=residue_bytes,
            reason=words.released(lease.lease_bytes, self._label, residue_bytes, NOISE_BYTES, back_s),
        )

    # -- what is shown --------------------------------------------------------------------------------------------

    @property
    def max_trials(self) -> int:
        """Return how many trials may run at once."""
        return self._admission.max_trials

    @property
    def state(self) -> tuple[str, str]:
        """Return "ready", "draining", "paused", "quarantined" or "blind", and the reason if it is not ready."""
        name = self._blocks.gravest
        return name or "ready", self._blocks.reason(name)

    @property
    def grantable_bytes(self) -> int:
        """Return what a trial that is alone on the device can get at most: the budget less the driver's own part."""
        return max(0, self.budget_bytes - self._accounts.driver_reserved_bytes)

    @property
    def strangers_bytes(self) -> int:
        """Return what other programs hold, as far as it concerns the budget."""
        return self._accounts.strangers_bytes(self._accounts.read_at_s)

    @property
    def overhead(self) -> Overhead:
        """Return what is known of the overhead of processes here."""
        return self._accounts.overhead

    @property
    def trespasser(self) -> str | None:
        """Return the lease of a trial that must be ended for its neighbours' sake; see `Accounts.trespasser`."""
        return self._accounts.trespasser()

    @property
    def left_bytes(self) -> int:
        """Return what ended trials left in use: part of the strangers' figure, and given to nobody."""
        return self._accounts.residues.left_bytes

    @property
    def overhead_bytes(self) -> int:
        """Return what a trial's lease is larger than the cap on torch's allocator; 0 on the CPU."""
        return 0 if self._on_cpu else self._accounts.overhead.learned_bytes

    def snapshot(self, now_s: float) -> LedgerState:
        """Return all of it, as it is shown."""
        name, reason = self.state
        offer = self.offer(now_s)
        return LedgerState(
            state=name,
            reason=reason or offer.reason,
            since_s=self._blocks.since_s(name),
            total_bytes=self.total_bytes,
            budget_bytes=self.budget_bytes,
            free_bytes=offer.free_bytes,
            strangers_bytes=self._accounts.strangers_bytes(now_s),
            driver_reserved_bytes=self._accounts.driver_reserved_bytes,
            slots=self.max_trials,
            leases=tuple(lease.shown() for lease in self._leases.values()),
        )
