"""What a trial does, the same in every way of running it: build its model and its one batch, train for its steps."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable
from typing import Any

from benchmarks.sweep.trials import Trial

#: In a dry run all trials of a family are as small as this.
_TINY = {"mlp": (64, 2, 64), "cnn": (8, 1, 8), "r18": (32, 2), "r50": (32, 2), "tfm": (1, 64, 16, 2)}
_FEATURES, _VOCABULARY = 256, 8192
#: The loss is read, which waits for the card, each tenth step and at the end.
REPORT_EVERY = 10


class Training:
    """A model, its optimizer and its one batch; a function of the trial alone.

    Args:
        trial: The trial.
        device: "cuda" or "cpu".
        tiny: Make it as small as a CPU can take.
    """

    def __init__(self, trial: Trial, device: str, *, tiny: bool = False) -> None:
        import torch

        self._torch, self._device, self._amp = torch, device, trial.amp
        shape = _TINY[trial.kind] if tiny else trial.shape
        torch.manual_seed(1000 + trial.id)
        self._draw = torch.Generator().manual_seed(trial.id)
        with torch.device(device):
            self._net = self._network(trial.kind, shape, tiny)
        self._x, targets = self._batch(trial.kind, shape)
        self._y = targets.to(device)
        self._optimizer = torch.optim.AdamW(self._net.parameters(), 1e-3)

    def step(self, *, read: bool = False) -> float | None:
        """Take one optimizer step; with `read` wait for it and return its loss."""
        torch = self._torch
        x = self._x.to(self._device)
        if x.dtype is torch.uint8:
            x = x.float().div_(255)
        with torch.autocast(self._device, torch.bfloat16, enabled=self._amp):
            logits = self._net(x).flatten(0, -2)
            loss = torch.nn.functional.cross_entropy(logits, self._y.flatten())
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return float(loss.item()) if read else None

    def _network(self, kind: str, shape: tuple[int, ...], tiny: bool) -> Any:
        if kind == "mlp":
            return self._perceptron(width=shape[0], depth=shape[1])
        if kind == "cnn":
            return self._convolutions(width=shape[0], per_stage=shape[1])
        if kind == "tfm":
            return self._transformer(depth=shape[0], width=shape[1])
        try:
            models: Any = importlib.import_module("torchvision.models")
        except ImportError:
            if not tiny:
                raise
            return self._convolutions(width=8, per_stage=1, classes=100)  # a dry run does without it
        return (models.resnet18 if kind == "r18" else models.resnet50)(num_classes=100)

    def _perceptron(self, width: int, depth: int) -> Any:
        nn = self._torch.nn
        sizes = [_FEATURES, *[width] * depth]
        layers: list[Any] = []
        for wide_in, wide_out in itertools.pairwise(sizes):
            layers += [nn.Linear(wide_in, wide_out), nn.LayerNorm(wide_out), nn.GELU(), nn.Dropout(0.1)]
        return nn.Sequential(*layers, nn.Linear(width, 10))

    def _convolutions(self, width: int, per_stage: int, classes: int = 10) -> Any:
        nn = self._torch.nn
        layers: list[Any] = []
        channels = 3
        for stage in range(3):
            for _ in range(per_stage):
                wide = width << stage
                layers += [nn.Conv2d(channels, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
                channels = wide
            layers.append(nn.MaxPool2d(2))
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))

    def _transformer(self, depth: int, width: int) -> Any:
        nn = self._torch.nn
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True)
        encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        return nn.Sequential(nn.Embedding(_VOCABULARY, width), encoder, nn.Linear(width, _VOCABULARY))

    def _batch(self, kind: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
        batch = shape[-1]
        if kind == "mlp":
            x = self._torch.randn(batch, _FEATURES, generator=self._draw)
            return x.to(self._device), self._integers(10, batch)
        if kind == "tfm":
            tokens = self._integers(_VOCABULARY, batch, shape[2]).to(self._device)
            return tokens, tokens
        side, classes = (32, 10) if kind == "cnn" else (shape[0], 100)
        # Images stay in host memory and are copied at each step, as a loader's are; 16 of them are enough to tell.
        few = self._integers(256, 16, 3, side, side).to(self._torch.uint8)
        return few.repeat(-(-batch // 16), 1, 1, 1)[:batch], self._integers(classes, batch)

    def _integers(self, below: int, *size: int) -> Any:
        return self._torch.randint(below, size, generator=self._draw)


def train(
    trial: Trial,
    steps: int,
    device: str,
    *,
    tiny: bool = False,
    report: Callable[[float, int], None] | None = None,
    grow: Callable[[float], None] | None = None,
) -> float:
    """Run a trial and return its last loss.

    Args:
        trial: The trial.
        steps: Of the optimizer.
        device: "cuda" or "cpu".
        tiny: See `Training`.
        report: Is given the loss and the step wherever the loss is read.
        grow: In a dry run: takes so many GiB of what stands for the card, a quarter at each of the first four steps.
    """
    training = Training(trial, device, tiny=tiny)
    loss = math.nan
    for step in range(steps):
        if grow is not None and step < 4:
            grow(trial.gib / 4)
        read = (step + 1) % REPORT_EVERY == 0 or step == steps - 1
        value = training.step(read=read)
        if value is not None:
            loss = value
            if report is not None:
                report(loss, step)
    return loss
