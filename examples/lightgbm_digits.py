"""LightGBM on scikit-learn's handwritten digits: no GPU, host memory is the budget.

With the pool:          vrampool run examples/lightgbm_digits.py:objective --trials 20 --gpu cpu
From a script:          python examples/lightgbm_digits.py
"""

from __future__ import annotations

import lightgbm
import optuna
from lightgbm.callback import CallbackEnv
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

ROUNDS = 30
PRUNE_EVERY = 5


def objective(trial: optuna.Trial) -> float:
    """Train one model and return its log loss on the validation set; smaller is better."""
    settings = {
        "objective": "multiclass",
        "num_class": 10,
        "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.5, log=True),
        "num_leaves": trial.suggest_int("num_leaves", 4, 64, log=True),
        "max_bin": trial.suggest_categorical("max_bin", [15, 63, 255]),
        "num_threads": 1,  # trials are what runs side by side here
        "seed": 0,
        "verbosity": -1,
    }
    x, y = load_digits(return_X_y=True)
    train_x, valid_x, train_y, valid_y = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)

    def prune(env: CallbackEnv) -> None:
        loss = env.evaluation_result_list[0][2]
        if env.iteration % PRUNE_EVERY == 0:
            trial.report(loss, env.iteration)
            if trial.should_prune():
                raise optuna.TrialPruned

    train = lightgbm.Dataset(train_x, train_y)
    history: dict[str, dict[str, list[float]]] = {}
    lightgbm.train(
        settings,
        train,
        num_boost_round=ROUNDS,
        valid_sets=[lightgbm.Dataset(valid_x, valid_y, reference=train)],
        callbacks=[lightgbm.record_evaluation(history), prune],
    )
    return min(history["valid_0"]["multi_logloss"])


def main() -> None:
    """Run the search in a pool that lives as long as this script."""
    import vrampool

    with vrampool.Pool(gpu="cpu") as pool:
        handle = pool.submit(objective, n_trials=20, study_name="lightgbm-digits")
        handle.wait()
        print(handle.best_trial.value, handle.best_trial.params)


if __name__ == "__main__":
    main()
