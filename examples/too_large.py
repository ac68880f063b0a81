"""A small convolutional network whose largest batches do not fit into 1 GiB: something for `vrampool probe` to find.

vrampool probe examples/too_large.py:objective --direction maximize --gpu cpu --budget 1GiB

`too_large_mended.py` beside it follows the probe's advice.
"""

from __future__ import annotations

import optuna
import torch
from torch import nn
from torch.nn import functional

BATCHES = [32, 128, 512, 2048]
IMAGES = 2048
EPOCHS = 3


def make_images(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of shape (IMAGES, 1, 32, 32), and which of four quarters of each is bright."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (IMAGES,), generator=generator)
    images = torch.rand(IMAGES, 1, 32, 32, generator=generator)
    for quarter in range(4):
        top, left = 16 * (quarter // 2), 16 * (quarter % 2)
        images[labels == quarter, :, top : top + 16, left : left + 16] += 0.5
    return images.to(device), labels.to(device)


def make_model(channels: int) -> nn.Module:
    """Return a network of two convolutions, the second of each channel by itself."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * channels, 4),
    )


def objective(trial: optuna.Trial) -> float:
    """Train one network and return its accuracy, between 0 and 1."""
    batch_size = trial.suggest_categorical("batch_size", BATCHES)
    channels = trial.suggest_int("channels", 8, 32, log=True)
    rate = trial.suggest_float("rate", 1e-3, 3e-2, log=True)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images, labels = make_images(device)
    model = make_model(channels).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

    accuracy = 0.0
    for epoch in range(EPOCHS):
        model.train()
        for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            accuracy = float((model(images[:64]).argmax(1) == labels[:64]).float().mean())
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return accuracy
