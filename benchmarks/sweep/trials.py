"""The trials of the sweep: five families of models, always the same list. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: The names of a shape's numbers, by family: what a user would call them.
SHAPES: dict[str, tuple[str, ...]] = {
    "mlp": ("width", "depth", "batch"),  # of 256 features
    "cnn": ("width", "depth", "batch"),  # depth: convolutions in each of three stages; images of 3x32x32
    "r18": ("resolution", "batch"),  # torchvision's ResNet-18
    "r50": ("resolution", "batch"),
    "tfm": ("depth", "width", "sequence", "batch"),  # a transformer encoder with a vocabulary of 8192
}

# Family, shape, mixed precision, estimated peak of the device in GiB, estimated ms of a step on a H200.
_ROWS: tuple[tuple[str, tuple[int, ...], int, float, float], ...] = (
    ("mlp", (256, 3, 1024), 0, 0.8, 2.5),
    ("mlp", (512, 3, 2048), 0, 0.9, 2.5),
    ("mlp", (512, 4, 4096), 1, 0.9, 3),
    ("mlp", (1024, 4, 4096), 1, 1.0, 3),
    ("mlp", (512, 6, 16384), 0, 1.9, 5),
    ("mlp", (1024, 6, 16384), 1, 2.0, 5),
    ("mlp", (1024, 4, 32768), 0, 3.6, 17),
    ("mlp", (1024, 6, 65536), 1, 5.0, 14),
    ("mlp", (2048, 6, 32768), 0, 9.3, 95),
    ("mlp", (2048, 8, 98304), 0, 33.0, 390),
    ("cnn", (32, 2, 64), 1, 0.9, 4),
    ("cnn", (32, 2, 128), 0, 1.0, 4),
    ("cnn", (48, 2, 128), 0, 1.1, 4),
    ("cnn", (48, 2, 256), 1, 1.2, 5),
    ("cnn", (64, 2, 256), 0, 1.5, 6),
    ("cnn", (64, 3, 512), 0, 2.8, 13),
    ("cnn", (64, 2, 1024), 1, 2.4, 12),
    ("cnn", (96, 3, 1024), 0, 6.7, 45),
    ("cnn", (128, 3, 2048), 1, 9.3, 75),
    ("cnn", (128, 3, 3584), 0, 28.2, 225),
    ("r18", (112, 16), 1, 1.2, 11),
    ("r18", (112, 64), 0, 1.5, 11),
    ("r18", (112, 128), 1, 1.5, 12),
    ("r18", (128, 128), 0, 2.2, 12),
    ("r18", (160, 128), 1, 2.0, 14),
    ("r18", (160, 256), 0, 4.8, 32),
    ("r18", (224, 128), 0, 4.6, 32),
    ("r18", (224, 256), 0, 8.1, 62),
    ("r50", (112, 32), 0, 2.2, 26),
    ("r50", (112, 64), 1, 2.2, 28),
    ("r50", (224, 16), 1, 2.2, 28),
    ("r50", (224, 32), 0, 4.5, 27),
    ("r50", (160, 128), 1, 4.8, 38),
    ("r50", (112, 256), 0, 8.2, 60),
    ("r50", (224, 144), 0, 17.3, 105),
    ("r50", (224, 256), 1, 15.1, 130),
    ("r50", (224, 256), 0, 29.5, 180),
    ("r50", (224, 240), 0, 27.7, 170),
    ("tfm", (2, 256, 128, 32), 0, 1.3, 7),
    ("tfm", (2, 256, 128, 64), 1, 1.5, 7),
    ("tfm", (4, 256, 128, 64), 0, 2.2, 11),
    ("tfm", (3, 384, 256, 16), 0, 1.6, 10),
    ("tfm", (4, 512, 256, 32), 1, 2.6, 11),
    ("tfm", (6, 512, 512, 32), 1, 5.0, 18),
    ("tfm", (6, 768, 256, 64), 0, 10.0, 107),
    ("tfm", (8, 768, 512, 96), 0, 32.0, 410),
    ("tfm", (8, 1024, 512, 64), 0, 29.0, 475),
    ("tfm", (8, 1024, 512, 96), 1, 28.0, 135),
)
_BLOCKS = 6
#: Blocks come in this order, so that each prefix of whole blocks has small and large ones.
_ORDER = (4, 5, 0, 3, 1, 2)
_SEED = 7


@dataclass(frozen=True)
class Trial:
    """One trial: what it trains, for how long, and what that was once seen to need."""

    id: int  #: its place in the table above
    kind: str  #: of `SHAPES`
    shape: tuple[int, ...]
    amp: bool  #: mixed precision, bfloat16
    gib: float  #: estimated peak of the device
    ms: float  #: estimated time of a step
    target_s: float  #: time on the card that it is given, at scale 1

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters as an objective suggests them; no two trials have the same."""
        return {"model": self.kind, **dict(zip(SHAPES[self.kind], self.shape, strict=True)), "amp": self.amp}

    def steps(self, ms: float, scale: float) -> int:
        """Return its number of steps, at least 4, where one takes `ms`."""
        return max(4, round(self.target_s * scale * 1000 / ms))


def all_trials() -> list[Trial]:
    """Return all 48 by their ids; targets are 2 to 8 s, mostly about 3."""
    draw = random.Random(_SEED)
    return [
        Trial(index, kind, shape, bool(amp), gib, ms, round(draw.triangular(2, 8, 3), 2))
        for index, (kind, shape, amp, gib, ms) in enumerate(_ROWS)
    ]


def trial_list(count: int = 24) -> list[Trial]:
    """Return the first `count` in the order they are run in; each block of eight is a like sample of the whole."""
    draw = random.Random(_SEED)
    for _ in _ROWS:
        draw.triangular(2, 8, 3)  # one generator draws the targets, then the order
    by_size = sorted(all_trials(), key=lambda trial: trial.gib)
    found: list[Trial] = []
    blocks = [by_size[first::_BLOCKS] for first in _ORDER]
    for block in blocks:
        draw.shuffle(block)
        found += block
    return found[:count]


def largest(trials: Sequence[Trial], count: int = 8) -> list[Trial]:
    """Return the largest of some trials, in the order they had."""
    chosen = sorted(trials, key=lambda trial: trial.gib)[-count:]
    return [trial for trial in trials if trial in chosen]


def trial_of(params: Mapping[str, Any]) -> Trial:
    """Return the trial with these parameters.

    Raises:
        LookupError: there is none.
    """
    for trial in all_trials():
        if trial.params == dict(params):
            return trial
    raise LookupError(f"no trial of the sweep has the parameters {dict(params)}")
