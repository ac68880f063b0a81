"""Ctrl-C while a command waits for a study: nothing new starts, and what runs is not thrown away unasked."""

from __future__ import annotations

import sys
from typing import Any

from vrampool.cli.output import follow
from vrampool.handle import Handle


def interrupted(pool: Any, handle: Handle, *, quiet: bool) -> None:
    """Stop a study, and say what becomes of the trials that run.

    In a pool that this command has started they are waited for; a second Ctrl-C ends them. In any other they finish by
    themselves.

    Args:
        pool: The `Pool` of the command.
        handle: What it waited for.
        quiet: Show no progress.

    Raises:
        KeyboardInterrupt: the third Ctrl-C.
    """
    own = pool.local is not None and pool.local.process is not None
    try:
        handle.stop("interrupted")
        running = handle.progress().running
        trials = "1 trial" if running == 1 else f"{running} trials"
        if not own:
            name = handle.study_name
            rest = f"; {trials} under way may finish; `vrampool stop {name} --now` ends what runs" if running else ""
            _say(f"no more trials of {name} start{rest}")
            return
        if running:
            _say(f"no more trials start; waiting for {trials} under way; Ctrl-C again ends them now")
        follow(handle, quiet=quiet)
    except KeyboardInterrupt:
        if not own:
            raise
        _say("ending what runs")
        handle.cancel("interrupted")
        follow(handle, quiet=quiet)


def _say(text: str) -> None:
    print(f"\n{text}", file=sys.stderr, flush=True)
