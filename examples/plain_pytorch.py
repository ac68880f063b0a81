"""A small network on scikit-learn's digits in plain PyTorch, with a peak that the batch size does not move.

With the pool:          vrampool run examples/plain_pytorch.py:objective --direction maximize --trials 20
From a script:          python examples/plain_pytorch.py
"""

from __future__ import annotations

import optuna
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from vrampool import training

EPOCHS = 5


def load_parts(device: torch.device) -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """Return the training set, and images of shape (599, 64) with their digits for validation."""
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
    y = torch.tensor(digits.target, device=device)
    # Every third image is for validation: the file is ordered by writer, and both parts shall know all of them.
    held_out = torch.arange(len(y), device=device) % 3 == 2
    return TensorDataset(x[~held_out], y[~held_out]), x[held_out], y[held_out]


def objective(trial: optuna.Trial) -> float:
    """Train one network and return its accuracy on the validation set, between 0 and 1."""
    # The search sees 64 to 512, memory never more than 64 samples at a time.
    batch = training.effective_batch(trial, [64, 128, 256, 512], max_physical=64)
    width = trial.suggest_int("width", 32, 512, log=True)
    rate = trial.suggest_float("rate", 1e-4, 3e-2, log=True)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, valid_x, valid_y = load_parts(device)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    precision = training.mixed_precision("auto", on_nonfinite="prune")
    accumulator = training.GradientAccumulator(optimizer, batch.steps, precision=precision, clip_norm=1.0)

    accuracy = 0.0
    for epoch in range(EPOCHS):
        model.train()
        for x, y in accumulator.batches(DataLoader(train, batch.physical_size, shuffle=True)):
            with precision.autocast():
                loss = functional.cross_entropy(model(x), y)
            accumulator.backward(loss, len(x))
        model.eval()
        with torch.inference_mode():
            accuracy = float((model(valid_x).argmax(1) == valid_y).float().mean())
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    precision.record(trial)
    return accuracy


def main() -> None:
    """Run the search in a pool that lives as long as this script."""
    import vrampool

    with vrampool.Pool() as pool:
        handle = pool.submit(objective, n_trials=20, direction="maximize", study_name="plain-pytorch")
        handle.wait()
        print(handle.best_trial.value, handle.best_trial.params)


if __name__ == "__main__":
    main()
