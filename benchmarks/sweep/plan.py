"""What all ways of running the sweep share: its trials, their steps, the card. A file that each process reads."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.sweep.trials import Trial, all_trials

#: Names the plan's file to processes that are not started by the sweep itself.
PLAN_VARIABLE = "SWEEP_PLAN"
#: A dry run's trials hold so much host memory for each GiB of the card.
DRY_BYTES_PER_GIB = 64 * 1024**2
#: The share of the card that the oracle packs, and the pool's budget.
BUDGET_SHARE = 0.85


@dataclass(frozen=True)
class Plan:
    """The sweep."""

    device: str  #: "cuda" or "cpu"
    card_gib: float  #: what the trials may have of the card in all
    whole: bool  #: the card is the whole one; else a ballast holds the rest
    ballast_bytes: int  #: what that has of the device
    order: tuple[int, ...]  #: ids of the trials
    steps: Mapping[int, int]  #: of the optimizer, by id
    ms: Mapping[int, float]  #: of one step alone on the card, by id
    need_gib: Mapping[int, float]  #: measured peak alone on the card, driver's part included, by id
    dry: bool = False
    pool_settings: Mapping[str, Any] = field(default_factory=dict)  #: given by hand for the pool ways
    dry_bytes_per_gib: int = DRY_BYTES_PER_GIB

    @property
    def trials(self) -> list[Trial]:
        every = all_trials()
        return [every[index] for index in self.order]

    @property
    def beyond(self) -> frozenset[int]:
        """Ids of the trials that are larger than the card."""
        return frozenset(index for index in self.order if self.need_gib[index] > self.card_gib)

    def alone_s(self, index: int) -> float:
        """Return how long a trial's steps take alone on the card."""
        return self.steps[index] * self.ms[index] / 1000

    @property
    def mark(self) -> str:
        """Tells whether two ways ran the same trials for the same time on the same card."""
        same = [self.device, self.card_gib if not self.whole else "whole", self.order, sorted(self.steps.items())]
        return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:8]

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def read(cls, file: Path) -> Self:
        raw = json.loads(file.read_text())
        for name in ("steps", "ms", "need_gib"):
            raw[name] = {int(key): value for key, value in raw[name].items()}
        return cls(**raw | {"order": tuple(raw["order"])})

    @classmethod
    def from_environment(cls) -> Self:
        return cls.read(Path(os.environ[PLAN_VARIABLE]))
