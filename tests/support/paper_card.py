"""A card on paper, to try a ledger on: true amounts, figures that may be late or missing, and a clock."""

from __future__ import annotations

from vrampool.units import GIB
from vrampool_worker.devices import DeviceReading
from vrampool_worker.ledger import Decision, Ledger, Release


class PaperCard:
    """A ledger, and the card it keeps the books of.

    `holds` is what each trial really holds, also after its end; `figures` is what is said of it, None: nothing.
    """

    def __init__(self, total_bytes: int = 24 * GIB, budget_bytes: int | None = None, **options: object) -> None:
        self.total_bytes = total_bytes
        options = {"label": "GPU 0"} | options
        slots = int(options.pop("max_trials", 16))  # type: ignore[call-overload]
        self.ledger = Ledger("GPU-1", total_bytes, budget_bytes or total_bytes, slots, **options)  # type: ignore[arg-type]
        self.now_s = 1000.0
        self.strangers_bytes = 0
        self.driver_reserved_bytes = 0
        self.utilisation: float | None = None
        self.tells = True
        self.holds: dict[str, int] = {}
        self.figures: dict[str, int | None] = {}

    @property
    def used_bytes(self) -> int:
        return self.strangers_bytes + sum(self.holds.values())

    @property
    def free_bytes(self) -> int:
        return self.ledger.offer(self.now_s).free_bytes

    def reading(self) -> DeviceReading:
        return DeviceReading(
            at_s=self.now_s,
            total_bytes=self.total_bytes,
            driver_reserved_bytes=self.driver_reserved_bytes if self.tells else None,
            used_bytes=self.used_bytes if self.tells else None,
            utilisation=self.utilisation,
        )

    def pass_time(self, seconds: float, every_s: float = 0.5) -> None:
        """Let time pass with readings in it, and one at its end. Nothing changes on the card meanwhile."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + every_s)
            self.look()

    def look(self) -> None:
        """Read the card now."""
        self.ledger.observe(self.reading(), dict(self.figures), self.now_s)

    def start(self, name: str, request_bytes: int | None, *, uses_bytes: int | None = 0) -> Decision:
        """Ask for a lease; if it is granted the trial starts, holds so much, and says so (None: says nothing)."""
        decision = self.ledger.grant(name, request_bytes, label=f"digits {name}", now_s=self.now_s)
        if decision.granted:
            self.ledger.confirm_started(name)
            self.holds[name] = uses_bytes or 0
            self.figures[name] = uses_bytes
        return decision

    def use(self, name: str, held_bytes: int) -> None:
        """Let a trial hold so much, and say so."""
        self.holds[name] = self.figures[name] = held_bytes

    def end(self, name: str, *, leaves_bytes: int = 0) -> None:
        """End a trial's processes; so much of its memory stays in use."""
        self.figures.pop(name)
        self.holds[name] = leaves_bytes
        self.ledger.ending(name, self.now_s)

    def settle(self, name: str) -> Release | None:
        """Read the card and try to release a lease."""
        self.now_s += 0.1
        self.look()
        return self.ledger.settle(name, self.reading(), self.now_s)
