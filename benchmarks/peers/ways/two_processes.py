"""Several processes that optimize one study in one storage, each its share of the trials: Optuna's own advice."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.peers.driving import Asked, create_study, finish, journal, load_study, states, wait_until
from benchmarks.peers.work import objective


def main() -> None:
    """Create the study, start the processes, wait for them."""
    asked = Asked.read()
    study = create_study(journal(asked.folder))
    command = [sys.executable, "-m", __spec__.name, "share"]
    processes = [subprocess.Popen(command) for _ in range(asked.at_once)]
    if asked.weighed:  # they stay up, for what they keep is to be seen
        wait_until(lambda: sum(state != "RUNNING" for state in states(study).values()) >= asked.trials, 120.0)
        finish(asked, states(study))
    codes = [process.wait() for process in processes]
    if not asked.weighed:
        finish(asked, states(study), codes=codes)


def share() -> None:
    """What one of the processes does."""
    asked = Asked.read()
    load_study(asked.folder).optimize(objective, n_trials=asked.trials // asked.at_once, catch=(Exception,))
    if asked.weighed:
        wait_until(lambda: (asked.folder / "weighed").exists(), 120.0)


if __name__ == "__main__":
    share() if "share" in sys.argv else main()
