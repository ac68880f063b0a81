"""Ray Tune with Optuna's sampler. Parameters come from `OptunaSearch`, each trial is an actor."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.peers.driving import Asked, finish
from benchmarks.peers.work import Drawn, objective

_STATES = {"TERMINATED": "COMPLETE", "ERROR": "FAIL", "PENDING": "WAITING"}


def trainable(config: dict[str, Any]) -> dict[str, float]:
    """Run one trial."""
    from ray import tune

    return {"value": objective(Drawn(config, tune.get_context().get_trial_id()))}


def main() -> None:
    """Start Ray on this machine alone, and fit."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1", RAY_TRAIN_V2_ENABLED="1")
    import ray
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    asked = Asked.read()
    ray.init(
        num_cpus=asked.at_once,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
        _temp_dir=str(asked.folder / "r"),  # short, for sockets lie in it
    )
    space = {"x": tune.uniform(-10.0, 10.0), "n": tune.randint(1, 9), "kind": tune.choice(["a", "b", "c"])}
    search = tune.TuneConfig(
        metric="value",
        mode="min",
        num_samples=asked.trials,
        max_concurrent_trials=asked.at_once,
        search_alg=OptunaSearch(),
    )
    run = tune.RunConfig(storage_path=str(asked.folder), verbose=0)
    results = tune.Tuner(trainable, param_space=space, tune_config=search, run_config=run).fit()
    trials = results._experiment_analysis.trials
    finish(asked, {trial.trial_id: _STATES.get(trial.status, trial.status) for trial in trials})
    ray.shutdown()


if __name__ == "__main__":
    # By its name: Ray would send what belongs to `__main__` as a copy of the whole module.
    from benchmarks.peers.ways import ray_tune

    ray_tune.main()
