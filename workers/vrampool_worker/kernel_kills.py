"""Whether the kernel has killed for want of host memory: its counters, of the control group and of the whole host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vrampool_worker.devices import cgroups


@dataclass(frozen=True)
class KernelKills:
    """How many processes the kernel's OOM killer has ended so far; None: it does not tell."""

    in_group: int | None = None
    on_host: int | None = None

    def since(self, before: KernelKills) -> str:
        """Say where it has killed since then; empty when it has not, as far as it tells."""
        if _rose(before.in_group, self.in_group):
            return "the memory limit of its control group was reached"
        if _rose(before.on_host, self.on_host):
            return "the host ran out of memory, or a control group on it did"
        return ""


def _rose(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before


def count_kills(root: Path = Path("/")) -> KernelKills:
    """Read the counters.

    Args:
        root: Where ``proc`` and the mount points are looked for.
    """
    counts = cgroups.oom_kills(root)
    return KernelKills(max(counts, default=None), cgroups.read_count(root / "proc/vmstat", "oom_kill"))
