"""A user's script: submits a study to the pool of a state directory and waits for it.

submitter.py STATE_DIR OBJECTIVE STUDY N_TRIALS SEED
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import optuna

import vrampool


def main(state_dir: str, objective: str, study_name: str, n_trials: int, seed: int) -> None:
    pool = vrampool.Pool(state_dir=state_dir)
    handle = pool.submit(
        objective,
        n_trials,
        study_name=study_name,
        vram="96MiB",
        sampler=optuna.samplers.TPESampler(n_startup_trials=5),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
        seed=seed,
        max_infra_retries=1000,
        env={name: os.environ[name] for name in ("EXECUTION_LOG", "STEP_S")},
    )
    if "SUBMITTED" in os.environ:
        Path(os.environ["SUBMITTED"]).touch()
    handle.wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
