"""A Lightning module on scikit-learn's digits: the search chooses the effective batch, Lightning accumulates.

With the pool:          vrampool run examples/lightning_digits.py:objective --direction maximize --trials 20
From a script:          python examples/lightning_digits.py
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning
import optuna
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from vrampool import training

EPOCHS = 4
# Lightning tells of each trainer what it found on the machine: too much for one trainer a trial.
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", message=".*does not have many workers.*")
warnings.filterwarnings("ignore", message=".*LeafSpec.*")


class Digits(lightning.LightningModule):
    """A small convolutional network."""

    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * width, 10),
        )

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, digits = batch
        return functional.cross_entropy(self.layers(images), digits)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        images, digits = batch
        self.log("accuracy", (self.layers(images).argmax(1) == digits).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.rate)


class Pruning(lightning.Callback):
    """Reports the accuracy of each epoch to the trial and ends it when it is to be pruned."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self.trial.report(float(trainer.callback_metrics["accuracy"]), trainer.current_epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def load_parts() -> tuple[TensorDataset, TensorDataset]:
    """Return images of shape (n, 1, 8, 8) with their digits, for training and for validation."""
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    y = torch.tensor(digits.target)
    held_out = torch.arange(len(y)) % 3 == 2
    return TensorDataset(x[~held_out], y[~held_out]), TensorDataset(x[held_out], y[held_out])


def objective(trial: optuna.Trial) -> float:
    """Train one network and return its accuracy on the validation set, between 0 and 1."""
    batch = training.effective_batch(trial, [32, 64, 128], max_physical=32)
    module = Digits(trial.suggest_int("width", 8, 64, log=True), trial.suggest_float("rate", 1e-3, 3e-2, log=True))
    train, valid = load_parts()
    cuda = torch.cuda.is_available()
    settings: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cuda" if cuda else "cpu",
        devices=1,
        precision="bf16-mixed" if cuda else "32-true",
        accumulate_grad_batches=batch.steps,
        gradient_clip_val=1.0,
        callbacks=[Pruning(trial)],
        enable_model_summary=False,
        benchmark=False,
        **settings,
    )
    trainer.fit(module, DataLoader(train, batch.physical_size, shuffle=True), DataLoader(valid, len(valid)))
    return float(trainer.callback_metrics["accuracy"])


def main() -> None:
    """Run the search in a pool that lives as long as this script."""
    import vrampool

    with vrampool.Pool() as pool:
        handle = pool.submit(objective, n_trials=20, direction="maximize", study_name="lightning-digits")
        handle.wait()
        print(handle.best_trial.value, handle.best_trial.params)


if __name__ == "__main__":
    main()
