"""Trials of one size each, which write down when they did how many steps: a file for each, in VRAMPOOL_BENCH_DIR.

The networks are those of the table "several trials on one card", on images of 32 x 32.
"""

from __future__ import annotations

import os
import time

#: Pause between two lines of a file. Before each the device is waited for: steps that are only queued are not done.
STAMP_S = 0.25


def small(trial):
    """A network that leaves most of a large card idle."""
    return _train(trial, width=32, batch=128, side=32)


def large(trial):
    """A network that keeps a large card busy alone."""
    return _train(trial, width=128, batch=512, side=32)


def tiny(trial):
    """A network for a processor: shows only that the program runs."""
    return _train(trial, width=4, batch=4, side=8)


def _train(trial, width, batch, side):
    import torch
    from torch import nn

    on_card = torch.cuda.is_available()
    device = "cuda" if on_card else "cpu"
    network = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    ).to(device)
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    images = torch.randn(batch, 3, side, side, device=device)
    classes = torch.randint(0, 10, (batch,), device=device)
    loss = torch.zeros(())

    def stamp(done):
        if on_card:
            torch.cuda.synchronize()
        file.write(f"{time.monotonic():.4f} {done}\n")

    path = os.path.join(os.environ["VRAMPOOL_BENCH_DIR"], f"{trial.number}.steps")
    with open(path, "w", buffering=1) as file:  # a line at a time: a trial that is ended has told what it did
        due_s = 0.0
        for done in range(1, int(os.environ["VRAMPOOL_BENCH_STEPS"]) + 1):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(images), classes)
            loss.backward()
            optimizer.step()
            if time.monotonic() >= due_s:
                stamp(done)
                due_s = time.monotonic() + STAMP_S
        stamp(done)
    return float(loss)
