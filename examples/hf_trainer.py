"""A tiny vision transformer with random weights on scikit-learn's digits, trained by Hugging Face's Trainer.

With the pool:          vrampool run examples/hf_trainer.py:objective --direction maximize --trials 20
From a script:          python examples/hf_trainer.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import optuna
import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification
from transformers.utils import logging

from vrampool import training

EPOCHS = 4
logging.set_verbosity_error()
logging.disable_progress_bar()


class Images(Dataset[dict[str, torch.Tensor]]):
    """The digits of some rows: images of shape (1, 8, 8) within [-1, 1], with their labels."""

    def __init__(self, *, validation: bool) -> None:
        digits = load_digits()
        # Every third image is for validation: the file is ordered by writer, and both parts shall know all of them.
        rows = (torch.arange(len(digits.target)) % 3 == 2) == validation
        self.images = torch.tensor(digits.images / 8 - 1, dtype=torch.float32)[rows, None]
        self.labels = torch.tensor(digits.target)[rows]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


class Pruning(TrainerCallback):
    """Reports the accuracy of each evaluation to the trial and ends it when it is to be pruned."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial
        self.accuracy = 0.0

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **_: Any) -> None:
        self.accuracy = metrics["eval_accuracy"]
        self.trial.report(self.accuracy, state.global_step)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def accuracy(prediction: Any) -> dict[str, float]:
    """Return the share of digits that were read right."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def objective(trial: optuna.Trial) -> float:
    """Train one network and return its accuracy on the evaluation set, between 0 and 1."""
    batch = training.effective_batch(trial, [32, 64, 128], max_physical=32)
    layers = trial.suggest_int("layers", 1, 2)
    rate = trial.suggest_float("rate", 1e-4, 1e-2, log=True)
    model = ViTForImageClassification(
        ViTConfig(
            image_size=8,
            patch_size=2,
            num_channels=1,
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=layers,
            num_attention_heads=4,
            hidden_dropout_prob=0.0,
            num_labels=10,
        )
    )
    pruning = Pruning(trial)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model,
            TrainingArguments(
                folder,
                num_train_epochs=EPOCHS,
                learning_rate=rate,
                per_device_train_batch_size=batch.physical_size,
                gradient_accumulation_steps=batch.steps,
                per_device_eval_batch_size=128,
                bf16=torch.cuda.is_available(),
                dataloader_pin_memory=torch.cuda.is_available(),
                eval_strategy="epoch",
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                seed=trial.number,
            ),
            train_dataset=Images(validation=False),
            eval_dataset=Images(validation=True),
            compute_metrics=accuracy,
            callbacks=[pruning],
        )
        trainer.train()
        return pruning.accuracy


def main() -> None:
    """Run the search in a pool that lives as long as this script."""
    import vrampool

    with vrampool.Pool() as pool:
        handle = pool.submit(objective, n_trials=20, direction="maximize", study_name="hf-trainer")
        handle.wait()
        print(handle.best_trial.value, handle.best_trial.params)


if __name__ == "__main__":
    main()
