"""What ended trials have left in use on a device: counted as nobody's, and watched for growth. Pure.

One residue is no reason to stop: what is still free stays useful. A device on which trial after trial leaves something
behind ends with nothing free, and something is wrong with it that no waiting mends.
"""

from __future__ import annotations

from vrampool.units import format_bytes
from vrampool_worker.ledger.strangers import NOISE_BYTES

#: So many trials must each have added to what was left before the device is taken out of service.
GROWTH_TRIALS = 3


class Residues:
    """What is left of ended trials on one device. Never more than what nobody explains."""

    def __init__(self) -> None:
        self.left_bytes = 0
        self._growths = 0
        self._last = ""

    def note(self, label: str, residue_bytes: int) -> str:
        """Take in the residue of an ended trial; return why the device must be quarantined, or nothing.

        Trials that leave nothing do not make the others' residue go away, so they do not count in between.
        """
        if residue_bytes <= NOISE_BYTES:
            return ""
        self.left_bytes += residue_bytes
        self._growths += 1
        self._last = f"{label} left {format_bytes(residue_bytes)}"
        if self._growths < GROWTH_TRIALS:
            return ""
        return (
            f"{self._growths} trials left memory in use that nobody of ours holds, {format_bytes(self.left_bytes)} in "
            f"all ({self._last}); end what holds it, then `vrampool resume`"
        )

    def seen(self, unexplained_bytes: int) -> None:
        """Learn how much of the device's use is nobody's of ours: no more than that can be left."""
        self.left_bytes = min(self.left_bytes, unexplained_bytes)
        if self.gone:
            self.left_bytes = self._growths = 0

    @property
    def gone(self) -> bool:
        """True when nothing is left that is more than noise."""
        return self.left_bytes <= NOISE_BYTES

    def still(self) -> str:
        """Say why a quarantine for growth cannot be lifted yet."""
        return (
            f"{format_bytes(self.left_bytes)} that trials left behind are still in use ({self._last}); it takes trials "
            "again when they are gone; restart the worker to go on without them"
        )
