"""`too_large.py` after the probe's advice: the search sees the same batches, memory holds 512 images at most.

vrampool probe examples/too_large_mended.py:objective --direction maximize --gpu cpu --budget 1GiB
"""

from __future__ import annotations

import optuna
import torch
from too_large import BATCHES, EPOCHS, make_images, make_model
from torch.nn import functional

from vrampool import training

#: What the probe said that fits beside all else at its largest.
MAX_PHYSICAL = 512


def objective(trial: optuna.Trial) -> float:
    """Train one network and return its accuracy, between 0 and 1: the same search as in `too_large`."""
    batch = training.effective_batch(trial, BATCHES, max_physical=MAX_PHYSICAL)
    channels = trial.suggest_int("channels", 8, 32, log=True)
    rate = trial.suggest_float("rate", 1e-3, 3e-2, log=True)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images, labels = make_images(device)
    model = make_model(channels).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    accumulator = training.GradientAccumulator(optimizer, batch.steps)

    accuracy = 0.0
    for epoch in range(EPOCHS):
        model.train()
        pieces = zip(images.split(batch.physical_size), labels.split(batch.physical_size), strict=True)
        for x, y in accumulator.batches(pieces):
            accumulator.backward(functional.cross_entropy(model(x), y), len(x))
        model.eval()
        with torch.inference_mode():
            accuracy = float((model(images[:64]).argmax(1) == labels[:64]).float().mean())
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return accuracy
