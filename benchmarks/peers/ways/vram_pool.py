"""The pool, as a script uses it. On the CPU, so that it can be compared where there is no card.

Spares import torch ahead by default where it is installed. The objectives that do not use it are run as people without
torch would: nothing is imported ahead.
"""

from __future__ import annotations

import sys

import vrampool
from benchmarks.peers import work
from benchmarks.peers.driving import Asked, finish


def main() -> None:
    """Start a pool, submit, wait."""
    asked = Asked.read()
    settings = {"start_method": "forkserver"} if "forkserver" in sys.argv else {}
    if asked.case != "torch":
        settings["preload"] = ""
    with vrampool.Pool(
        gpu="cpu",
        share=True,
        budget="4GiB",
        max_trials=asked.at_once,
        state_dir=asked.folder / "pool",
        **settings,
    ) as pool:
        handle = pool.submit(
            f"{work.__file__}:objective",
            n_trials=asked.trials,
            vram="1GiB",
            trial_timeout_s=asked.limit_s,
            env={"PEERS_RUN": str(asked.folder), "PEERS_CASE": asked.case},
        ).wait()
        from vrampool.storage import root_of  # Optuna, which the pool imports while its processes start

        last = {root_of(trial): trial.state.name for trial in handle.trials}  # of each trial its last attempt
        finish(asked, {str(number): state for number, state in last.items()})


if __name__ == "__main__":
    main()
