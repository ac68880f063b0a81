"""Search for a small convolutional network on the handwritten digits that scikit-learn ships.

With the pool:          vrampool run examples/digits.py:objective --direction maximize --trials 20
With Optuna alone:      python examples/digits.py --trials 20

The objective knows nothing about the pool: it is what you would give to `study.optimize`. Width and batch size
decide how much memory a trial takes: from 20 MiB to 250 MiB on top of what
PyTorch itself takes.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import time
from pathlib import Path

import numpy as np
import optuna
import torch
from torch import nn
from torch.nn import functional

EPOCHS = 6
SIDE = 16  # the 8x8 images are enlarged to this, so that activations take memory as those of real images do


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of shape (1797, 1, 16, 16) within [0, 1], and their digits of shape (1797,).

    The file is read without importing scikit-learn: each trial is a new process, and the import would cost each one
    a second and 100 MiB.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("this example reads the digits of scikit-learn: pip install scikit-learn")
    with gzip.open(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :64] / 16).reshape(-1, 1, 8, 8)
    enlarged = functional.interpolate(images, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    return enlarged, torch.from_numpy(table[:, 64]).long()


def build_network(width: int, depth: int, dropout: float) -> nn.Sequential:
    """Return a network with `width` channels: a layer on the full image, then `depth` layers on half its side."""
    layers: list[nn.Module] = [*convolution(1, width), nn.MaxPool2d(2)]
    for _ in range(depth):
        layers += convolution(width, width)
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(4), nn.Flatten(), nn.Dropout(dropout), nn.Linear(16 * width, 10))


def convolution(channels_in: int, channels_out: int) -> list[nn.Module]:
    """Return one 3x3 convolution with its normalisation, which follows few and large batches too (`momentum`)."""
    layer = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
    return [layer, nn.BatchNorm2d(channels_out, momentum=0.3), nn.ReLU()]


def objective(trial: optuna.Trial) -> float:
    """Train one network and return its accuracy on the validation set, between 0 and 1."""
    width = trial.suggest_int("width", 8, 64, log=True)
    depth = trial.suggest_int("depth", 1, 3)
    batch_size = trial.suggest_categorical("batch_size", [32, 64, 128, 256, 512])
    learning_rate = trial.suggest_float("learning_rate", 1e-4, 3e-2, log=True)
    dropout = trial.suggest_float("dropout", 0.0, 0.5)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    images, digits = (tensor.to(device) for tensor in load_digits())
    # Every third image is for validation: the file is ordered by writer, and both parts shall know all of them.
    held_out = torch.arange(len(digits), device=device) % 3 == 2
    train_x, train_y, valid_x, valid_y = images[~held_out], digits[~held_out], images[held_out], digits[held_out]

    network = build_network(width, depth, dropout).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate)
    accuracy = 0.0
    for epoch in range(EPOCHS):
        network.train()
        for chosen in torch.randperm(len(train_y), device=device).split(batch_size):
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(network(train_x[chosen]), train_y[chosen]).backward()
            optimizer.step()
        network.eval()
        with torch.inference_mode():
            right = sum(
                int((network(x).argmax(1) == y).sum())
                for x, y in zip(valid_x.split(64), valid_y.split(64), strict=True)
            )
        accuracy = right / len(valid_y)
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return accuracy


def main() -> None:
    """Run the search with plain Optuna in this process, one trial after the other."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=args.seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1),
    )
    started = time.perf_counter()
    study.optimize(objective, n_trials=args.trials)
    print(f"{args.trials} trials in {time.perf_counter() - started:.1f} s, best {study.best_value:.4f}")
    print(study.best_params)


if __name__ == "__main__":
    main()
