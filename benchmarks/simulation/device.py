"""One simulated device: the real ledger, and what a worker says and asks of it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from vrampool import queueing
from vrampool.messages import Ticket
from vrampool.queueing import RunningTrial, Taken, WorkerRecord
from vrampool.units import GIB
from vrampool_worker.devices import DeviceReading
from vrampool_worker.ledger import Ledger

TOTAL_BYTES = 80 * GIB
BUDGET_BYTES = 68 * GIB
#: A record or a lease lives so long by the server's own clock, which cannot be simulated.
LIFE_S = 86_400.0
_VERSIONS = {"python": "3.12.3", "vrampool": "0.1.0", "wire": "1", "optuna": "5.0.0", "torch": "2.11.0+cu130"}


@dataclass
class Running:
    """A trial that runs on a device."""

    taken: Taken
    ticket: Ticket
    lease_id: str
    lease_bytes: int
    peak_bytes: int
    since_s: float
    execution_id: str = ""
    reported: bool = False  #: it has been through a whole round, so what it was seen to hold is told

    @property
    def too_large(self) -> bool:
        """Return whether it needs more than it was given, so that it will end for it."""
        return self.peak_bytes > self.lease_bytes

    @property
    def held_bytes(self) -> int:
        """Return what it holds."""
        return min(self.peak_bytes, self.lease_bytes)


@dataclass
class Device:
    """A device and its worker, as far as the rest of the pool can see it.

    Args:
        name: Of the worker.
        slots: Trials at once.
    """

    name: str
    slots: int
    held: dict[str, Running] = field(default_factory=dict)
    asking: bool = False  #: a question is under way
    again: bool = False  #: something happened meanwhile, so the answer may be old

    def __post_init__(self) -> None:
        self.device_id = f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, self.name)}"
        self.ledger = Ledger(self.device_id, TOTAL_BYTES, BUDGET_BYTES, self.slots, label=self.name)
        self.look(0.0)

    def look(self, now_s: float) -> None:
        """Read the device: its trials hold what they hold, and nobody else is there."""
        measured = {item.lease_id: item.held_bytes for item in self.held.values()}
        self.ledger.observe(self._reading(now_s, self._used()), measured, now_s)

    def _reading(self, now_s: float, used_bytes: int) -> DeviceReading:
        return DeviceReading(at_s=now_s, total_bytes=TOTAL_BYTES, driver_reserved_bytes=0, used_bytes=used_bytes)

    def has_room(self, now_s: float) -> bool:
        """Return whether its worker would ask for a trial."""
        return len(self.held) < self.slots and self.ledger.offer(now_s).free_bytes > 0

    def question(self, now_s: float, age_limit_s: float) -> queueing.Offer:
        """Return what its worker asks the queue."""
        offer = self.ledger.offer(now_s)
        return queueing.Offer(
            worker=self.name,
            lease_id=uuid.uuid4().hex,
            free_bytes=offer.free_bytes,
            idle=offer.idle,
            ttl_ms=int(LIFE_S * 1000),
            device_id=self.device_id,
            device_kind="cuda",
            most_bytes=self.ledger.most_bytes(now_s),
            trials=len(self.held),
            room_bytes=offer.room_bytes,
            age_limit_ms=int(age_limit_s * 1000),
        )

    def start(
        self, taken: Taken, ticket: Ticket, lease_id: str, now_s: float, peak_bytes: int | None = None
    ) -> Running | None:
        """Grant a lease and start a trial; None when the ledger refuses. Without a peak it holds most of its lease."""
        label = f"{ticket.study_name}/{ticket.number}"
        decision = self.ledger.grant(lease_id, taken.vram_bytes, label=label, now_s=now_s)
        if not decision.granted:
            return None
        self.ledger.confirm_started(lease_id)
        peak_bytes = int(decision.lease_bytes * 0.8) if peak_bytes is None else peak_bytes
        running = Running(taken, ticket, lease_id, decision.lease_bytes, peak_bytes, now_s)
        self.held[taken.job_id] = running
        self.look(now_s)
        return running

    def report(self, running: Running, now_s: float) -> None:
        """A trial has been through its first round: it runs alone no longer, and what it holds is told from now on."""
        running.reported = True
        if running.taken.vram_bytes is None:
            running.lease_bytes = self.ledger.report_first(running.lease_id, running.peak_bytes, now_s).lease_bytes

    def end(self, running: Running, now_s: float) -> None:
        """End a trial and see its memory back."""
        del self.held[running.taken.job_id]
        self.ledger.ending(running.lease_id, now_s)
        self.look(now_s)
        release = self.ledger.settle(running.lease_id, self._reading(now_s, self._used()), now_s)
        assert release is not None, "the memory is back at once"

    def _used(self) -> int:
        return sum(item.held_bytes for item in self.held.values())

    def record(self, now_s: float) -> WorkerRecord:
        """Return what its worker tells the pool."""
        offer = self.ledger.offer(now_s)
        return WorkerRecord(
            name=self.name,
            host="simulated",
            pid=1,
            device_id=self.device_id,
            device_name=f"{self.name} (NVIDIA H100 80GB HBM3)",
            device_kind="cuda",
            total_bytes=TOTAL_BYTES,
            budget_bytes=BUDGET_BYTES,
            free_bytes=offer.free_bytes,
            grantable_bytes=self.ledger.grantable_bytes,
            slots=self.slots,
            state="ready",
            reason=offer.reason,
            running=tuple(
                RunningTrial(
                    item.ticket.study_name,
                    item.ticket.number,
                    item.lease_bytes,
                    item.held_bytes,
                    item.since_s,
                    peak_bytes=item.held_bytes if item.reported else None,
                )
                for item in self.held.values()
            ),
            versions=_VERSIONS,
            most_bytes=self.ledger.most_bytes(now_s),
            room_bytes=offer.room_bytes,
            overhead_bytes=self.ledger.overhead_bytes,
        )
