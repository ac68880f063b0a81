"""Four families of models with a few steps each: their memory is what matters, not what they learn.

With VRAMPOOL_BENCH_TRAIN_S they train for so many seconds; with VRAMPOOL_BENCH_DEVICE=cpu not on a card.
"""

from __future__ import annotations

import os
import time

STEPS = 4
DEVICE = os.environ.get("VRAMPOOL_BENCH_DEVICE", "cuda")
TRAIN_S = float(os.environ.get("VRAMPOOL_BENCH_TRAIN_S", "0"))
#: After the first steps a trial that goes on reports so often, as it would at the end of an epoch.
REPORT_S = 0.2


def _train(trial, model, make_batch, loss_of, *, amp=False):
    """Train for a few steps on the device; report each; return the last loss."""
    import torch

    end_s = time.monotonic() + TRAIN_S

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = torch.zeros(())
    step, due_s = 0, 0.0
    while step < STEPS or time.monotonic() < end_s:
        batch = make_batch()
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=amp):
            loss = loss_of(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step < STEPS or time.monotonic() >= due_s:
            trial.report(float(loss), step)
            due_s = time.monotonic() + REPORT_S
        step += 1
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return float(loss)


def mlp(trial):
    """A deep perceptron: weights and optimizer state weigh more than activations."""
    import torch
    from torch import nn

    width = trial.suggest_int("width", 512, 8192, log=True)
    depth = trial.suggest_int("depth", 2, 12)
    batch = trial.suggest_int("batch", 64, 4096, log=True)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(DEVICE)
    return _train(
        trial,
        model,
        lambda: torch.randn(batch, width, device=DEVICE),
        lambda net, x: net(x).square().mean(),
    )


def cnn(trial):
    """A plain convolutional network: activations weigh most."""
    import torch
    from torch import nn

    width = trial.suggest_int("width", 32, 256, log=True)
    depth = trial.suggest_int("depth", 2, 8)
    batch = trial.suggest_int("batch", 16, 512, log=True)
    size = trial.suggest_categorical("size", [32, 64, 96])
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).to(DEVICE)
    return _train(
        trial,
        model,
        lambda: torch.randn(batch, 3, size, size, device=DEVICE),
        lambda net, x: net(x).square().mean(),
    )


def resnet(trial):
    """ResNets of torchvision, with and without mixed precision."""
    import torch
    import torchvision

    kind = trial.suggest_categorical("model", ["resnet18", "resnet34", "resnet50"])
    batch = trial.suggest_int("batch", 8, 192, log=True)
    size = trial.suggest_categorical("size", [96, 128, 192])
    amp = trial.suggest_categorical("amp", [False, True])
    model = getattr(torchvision.models, kind)(num_classes=100).to(DEVICE)
    return _train(
        trial,
        model,
        lambda: torch.randn(batch, 3, size, size, device=DEVICE),
        lambda net, x: net(x).float().square().mean(),
        amp=amp,
    )


def transformer(trial):
    """An encoder: memory grows with the square of the sequence, and with the width."""
    import torch
    from torch import nn

    width = trial.suggest_categorical("width", [256, 512, 768, 1024])
    depth = trial.suggest_int("depth", 2, 12)
    batch = trial.suggest_int("batch", 2, 48, log=True)
    sequence = trial.suggest_int("sequence", 64, 768, log=True)
    amp = trial.suggest_categorical("amp", [False, True])
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, depth), nn.Linear(width, 32)).to(DEVICE)
    return _train(
        trial,
        model,
        lambda: torch.randn(batch, sequence, width, device=DEVICE),
        lambda net, x: net(x).float().square().mean(),
        amp=amp,
    )


def greedy(trial):
    """Ask for more than any lease: fails at its cap, while a neighbour goes on."""
    import torch

    gib = trial.suggest_int("gib", 1, 8)
    block = torch.empty(gib * 1024**3, dtype=torch.uint8, device="cuda").fill_(1)
    torch.cuda.synchronize()
    time.sleep(0.2)
    return float(block[0])


def sized(trial):
    """Hold so many GiB, as a model would: in pieces, with the libraries loaded that a step loads; report; give back."""
    import torch

    gib = trial.suggest_float("gib", 0.5, 64.0)
    image, kernel = torch.ones(8, 3, 64, 64, device="cuda"), torch.ones(16, 3, 3, 3, device="cuda")
    matrix = torch.ones(1024, 1024, device="cuda")
    held = []
    while len(held) < gib * 4:
        held.append(torch.empty(256 * 1024**2, dtype=torch.uint8, device="cuda").fill_(1))
    loss = (matrix @ matrix).mean() + torch.nn.functional.conv2d(image, kernel).mean()
    trial.report(float(loss), 0)
    torch.cuda.synchronize()
    time.sleep(0.5)  # two readings see it
    return float(len(held))
