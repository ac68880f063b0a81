"""A random forest on scikit-learn's breast cancer data: no GPU, host memory is the budget.

With the pool:          vrampool run examples/sklearn_forest.py:objective --direction maximize --trials 20 --gpu cpu
From a script:          python examples/sklearn_forest.py
"""

from __future__ import annotations

import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

TREES = (25, 50, 100, 200)


def objective(trial: optuna.Trial) -> float:
    """Grow one forest and return its accuracy on the validation set, between 0 and 1."""
    forest = RandomForestClassifier(
        max_depth=trial.suggest_int("max_depth", 2, 32, log=True),
        max_features=trial.suggest_float("max_features", 0.05, 1.0),
        min_samples_leaf=trial.suggest_int("min_samples_leaf", 1, 20, log=True),
        warm_start=True,  # the trees of the step before are kept
        n_jobs=1,  # trials are what runs side by side here
        random_state=0,
    )
    x, y = load_breast_cancer(return_X_y=True)
    train_x, valid_x, train_y, valid_y = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)
    accuracy = 0.0
    for step, trees in enumerate(TREES):
        forest.set_params(n_estimators=trees)
        forest.fit(train_x, train_y)
        accuracy = float(forest.score(valid_x, valid_y))
        trial.report(accuracy, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return accuracy


def main() -> None:
    """Run the search in a pool that lives as long as this script."""
    import vrampool

    with vrampool.Pool(gpu="cpu") as pool:
        handle = pool.submit(objective, n_trials=20, direction="maximize", study_name="sklearn-forest")
        handle.wait()
        print(handle.best_trial.value, handle.best_trial.params)


if __name__ == "__main__":
    main()
