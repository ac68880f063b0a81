"""`study.optimize` with threads: what everybody begins with."""

from __future__ import annotations

from benchmarks.peers.driving import Asked, create_study, finish, states
from benchmarks.peers.work import objective


def main() -> None:
    """Optimize, in memory."""
    asked = Asked.read()
    study = create_study()
    study.optimize(objective, n_trials=asked.trials, n_jobs=asked.at_once, catch=(Exception,))
    finish(asked, states(study))


if __name__ == "__main__":
    main()
