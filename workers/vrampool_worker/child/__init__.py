"""The process of one trial, started by a worker as ``python -m vrampool_worker.child``.

The fresh interpreter splits in two at once: the keeper (`keeper`) stays above, and the process that runs the trial
(`process`) goes on below it. Until then nothing but that may be imported: the split is a fork, and stands in for
an exec only while this process is as good as new.
"""

from __future__ import annotations

import gc

from vrampool_worker.child import keeper


def run_trial(arguments: list[str]) -> None:
    """Split, then run one trial and exit; never returns.

    Args:
        arguments: Descriptors of the frames and the control socket, the worker's process id, the scratch directory,
            and the modules to import ahead, with commas.
    """
    frames_fd, control_fd, worker, scratch, preload = arguments
    keeper.fork_trial(int(control_fd), int(frames_fd), scratch, int(worker))
    gc.disable()  # until all is imported: modules stay, so it would find nothing, for a tenth of the time

    from vrampool_worker.child.process import TrialProcess

    TrialProcess(int(frames_fd), scratch, [name for name in preload.split(",") if name]).run()
