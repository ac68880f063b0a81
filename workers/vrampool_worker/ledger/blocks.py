"""Why a device takes nothing new: paused, draining, blind or quarantined. Pure."""

from __future__ import annotations

from vrampool_worker.ledger.residues import Residues

#: The gravest first; also the names of the ledger's states.
NAMES = ("quarantined", "blind", "draining", "paused")


class Blocks:
    """What stops a device, each thing with its reason. Several may hold at once.

    Args:
        residues: What ended trials left behind: a quarantine for that ends when it is gone.
    """

    def __init__(self, residues: Residues) -> None:
        self._residues = residues
        self._blocks: dict[str, tuple[str, float | None]] = {}
        self._for_residue = False
        self._resumes_when_gone = False

    def put(self, name: str, reason: str, now_s: float | None) -> None:
        """Stop the device; it has been stopped since the first time."""
        earlier = self._blocks.get(name)
        self._blocks[name] = (reason, earlier[1] if earlier else now_s)

    def lift(self, name: str) -> None:
        """End one of them, if it holds."""
        self._blocks.pop(name, None)

    def quarantine(self, reason: str, now_s: float, *, for_residue: bool = False) -> None:
        self._for_residue, self._resumes_when_gone = for_residue, False
        self.put("quarantined", reason, now_s)

    def resume(self) -> None:
        """End all but "blind", and a quarantine for what trials left behind as long as that is there."""
        quarantined = self._blocks.get("quarantined")
        self._blocks = {name: block for name, block in self._blocks.items() if name == "blind"}
        self._resumes_when_gone = bool(quarantined and self._for_residue)
        if quarantined and self._resumes_when_gone:
            self._blocks["quarantined"] = (self._residues.still(), quarantined[1])
            self.lift_if_gone()

    def lift_if_gone(self) -> None:
        """End a quarantine that was to end when what trials left behind is gone."""
        if self._resumes_when_gone and self._residues.gone:
            self._resumes_when_gone = self._for_residue = False
            self.lift("quarantined")

    @property
    def gravest(self) -> str:
        """Return the name of the gravest; empty when nothing stops the device."""
        return next((name for name in NAMES if name in self._blocks), "")

    def __contains__(self, name: object) -> bool:
        return name in self._blocks

    def reason(self, name: str) -> str:
        """Return why, in words; empty when that does not hold."""
        return self._blocks[name][0] if name in self._blocks else ""

    def since_s(self, name: str) -> float | None:
        return self._blocks[name][1] if name in self._blocks else None
