"""Trials whose process somebody has stopped (SIGSTOP, a debugger's halt): left alone, for that was meant, but told of.

Such a trial does nothing, keeps its lease, and without a time limit its study would wait for it without a word.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from vrampool_worker import process_tree
from vrampool_worker.attempts import Attempt, Stage

if TYPE_CHECKING:
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")

LOOK_S = 2.0
#: States of a process in /proc: stopped by a signal, and by whoever traces it.
_STOPPED = (b"T", b"t")


class StoppedWatch:
    """Looks at the processes of running trials now and then. Only the main loop calls it.

    Args:
        loop: The worker's main loop.
    """

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop
        loop.every(LOOK_S, self._look)

    def _look(self) -> None:
        for attempt in self._loop.attempts.values():
            pid = _stopped(attempt)
            if pid is not None and not attempt.trouble:
                attempt.trouble = self._words(pid)
                _log.warning("%s does nothing: %s", attempt.label, attempt.trouble)
            elif pid is None and attempt.trouble:
                attempt.trouble = ""
                if attempt.stage is Stage.RUNNING:
                    _log.info("%s goes on", attempt.label)

    def _words(self, pid: int) -> str:
        """Say what is wrong and what helps; with the time of day, for people read it long after."""
        seen = time.strftime("%H:%M:%S")
        return (
            f"its process {pid} was stopped before {seen} and holds its lease until it ends: on {self._loop.host} "
            f"`kill -CONT {pid}` lets it go on, `kill -KILL {pid}` ends this attempt"
        )


def _stopped(attempt: Attempt) -> int | None:
    """Return the process of a running attempt that is stopped; one that is traced may be stepped through, too."""
    child = attempt.child
    if attempt.stage is not Stage.RUNNING or child is None or child.exited or attempt.ending is not None:
        return None
    for pid in (child.pid, child.keeper_pid):
        fields = process_tree.stat_of(pid) if pid is not None else None
        if fields is not None and fields[0] in _STOPPED:
            return pid
    return None
