"""The sweep as an Optuna objective, for the pool: a search over families of models, their sizes and precision."""

from __future__ import annotations

from typing import Any

from benchmarks.sweep.plan import Plan
from benchmarks.sweep.training import train
from benchmarks.sweep.trials import SHAPES, trial_of

#: A process with torch on the CPU holds about so much by itself.
_OWN_BYTES = 320 * 1024**2
_BOUNDS = {"width": (32, 2048), "depth": (2, 8), "batch": (16, 98304), "sequence": (128, 512), "resolution": (112, 224)}


def objective(trial: Any) -> float:
    """Train what the parameters say, for as many steps as the plan gives it; report the loss now and then."""
    params: dict[str, Any] = {"model": trial.suggest_categorical("model", list(SHAPES))}
    for name in SHAPES[params["model"]]:
        low, high = _BOUNDS[name]
        params[name] = trial.suggest_int(name, low, high, log=name in ("width", "batch"))
    params["amp"] = trial.suggest_categorical("amp", [False, True])
    plan = Plan.from_environment()
    chosen = trial_of(params)
    held = HostMemory(plan.dry_bytes_per_gib) if plan.dry else None
    return train(
        chosen,
        plan.steps[chosen.id],
        plan.device,
        tiny=plan.dry,
        report=trial.report,
        grow=held.grow if held is not None else None,
    )


class HostMemory:
    """In a dry run host memory stands for the card's: what is asked for is held until the process ends.

    Args:
        bytes_per_gib: Bytes of host memory for a GiB of the card.
    """

    def __init__(self, bytes_per_gib: int) -> None:
        self._bytes_per_gib = bytes_per_gib
        self._wanted_bytes = -_OWN_BYTES
        self._blocks: list[bytearray] = []

    def grow(self, gib: float) -> None:
        """Hold so much more, less what the process holds without it."""
        before = max(0, self._wanted_bytes)
        self._wanted_bytes += int(gib * self._bytes_per_gib)
        if self._wanted_bytes > before:
            self._blocks.append(bytearray(b"\1") * (self._wanted_bytes - before))
