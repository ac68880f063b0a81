"""Processes that have come up to a worker because the keeper above them was killed.

A worker is a subreaper too. Its own children are keepers; whatever else turns up among them was below one that is no
more, and is ended here.
"""

from __future__ import annotations

import functools
import os

from vrampool_worker import process_tree


@functools.cache
def of_this_process() -> Orphans:
    """Return the orphans of this process; from the first call on it is a subreaper."""
    return Orphans()


class Orphans:
    """Ends what has no keeper any more. Children that this process has when it is made are left alone for good."""

    def __init__(self) -> None:
        process_tree.become_subreaper()
        self._mine = set(process_tree.children_of(os.getpid()))

    def keep(self, pid: int) -> None:
        """Leave a child of this process alone: a keeper, or a daemon that the worker has started."""
        self._mine.add(pid)

    def forget(self, pid: int) -> None:
        """Take back `keep`, before the child is waited for and its number can be another's."""
        self._mine.discard(pid)

    def sweep(self, since: int) -> bool:
        """Kill orphans that started at or after `since`, and what is below them; True when none is left.

        Args:
            since: Start time of the keeper that was killed, as `process_tree.started_at` gives it: whatever was
                below it is younger. Older processes are somebody else's.
        """
        clear = True
        for pid in process_tree.children_of(os.getpid()):
            fields = process_tree.stat_of(pid)
            if pid in self._mine or fields is None or int(fields[19]) < since:
                continue
            started = process_tree.started_at(pid)
            if started is None:
                _reap(pid)  # a corpse, and nobody else's
            else:
                clear = False
                process_tree.end_all_below(pid, tidy_until_s=0.0)
                process_tree.kill_exactly(pid, started)
        return clear


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # somebody has, after all
        pass
