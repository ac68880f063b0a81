"""Processes of the local pool that somebody has stopped (SIGSTOP): nothing goes on then, and nothing says why."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from vrampool.health import look
from vrampool.processes import is_stopped

#: Pause between two looks of a command that waits.
_LOOK_S = 5.0


def stopped_parts(state_dir: Path) -> list[str]:
    """Say which coordinators and workers of this host and state directory are stopped, and what helps; a line each."""
    signs = [verdict.sign for verdict in look(state_dir)]
    return [
        f"the {sign.role} {sign.name} does nothing: its process {sign.pid} was stopped; "
        f"`kill -CONT {sign.pid}` lets it go on"
        for sign in signs
        if is_stopped(sign.pid, sign.start_time)
    ]


class StoppedNews:
    """Warns a command that waits, once for each process."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._next_s = time.monotonic() + _LOOK_S
        self._told: set[str] = set()

    def beside(self, look: Callable[[], None]) -> Callable[[], None]:
        """Return what makes another look, and this one."""

        def both() -> None:
            look()
            self.tell()

        return both

    def tell(self) -> None:
        """Print what is new to standard error; most of the time nothing is looked for."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _LOOK_S
        for text in stopped_parts(self._state_dir):
            if text not in self._told:
                self._told.add(text)
                print(f"warning: {text}", file=sys.stderr)
