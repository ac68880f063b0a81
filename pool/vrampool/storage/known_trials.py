"""Unfinished trials as a process has read them, for one that reads a study again and again.

A trial that runs has some twenty rows in six tables. The coordinator reads the study for every trial that it makes, so
with 1 000 devices reading what runs cost more than all else that it did (docs/scale.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from vrampool.storage.marks import REQUEST

#: What an objective adds to a running trial is seen so late at most.
MAX_AGE_S = 2.0
#: More is never unfinished; it is what deleted studies left behind.
_MOST = 20_000


@dataclass(frozen=True)
class _Known:
    row: tuple[Any, ...]  #: state and times
    trial: FrozenTrial
    read_at_s: float


class KnownTrials:
    """Remembers trials that wait with their request, or run with parameters. All others are read anew every time.

    A trial that moves on, from waiting to running or to its end, is read anew at once: its row tells.

    Args:
        clock: Monotonic seconds.
        max_age_s: Reports, attributes and further parameters of a running trial may be so old.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_age_s: float = MAX_AGE_S) -> None:
        self._clock = clock
        self._max_age_s = max_age_s
        self._known: dict[int, _Known] = {}

    def of(self, rows: Iterable[Any]) -> dict[int, FrozenTrial]:
        """Return the trials of these rows that need not be read, by id."""
        oldest_s = self._clock() - self._max_age_s
        found = {}
        for row in rows:
            known = self._known.get(row.trial_id)
            if known is not None and known.row == _told(row) and known.read_at_s > oldest_s:
                found[row.trial_id] = known.trial
        return found

    def note(self, rows: Sequence[Any], trials: Sequence[FrozenTrial]) -> None:
        """Take in trials that were read just now, and their rows."""
        now_s = self._clock()
        if len(self._known) > _MOST:
            self._known.clear()
        for row, trial in zip(rows, trials, strict=True):
            if _is_whole(trial):
                self._known[row.trial_id] = _Known(_told(row), trial, now_s)
            else:
                self._known.pop(row.trial_id, None)


def _told(row: Any) -> tuple[Any, ...]:
    # A trial that was handed back and claimed again runs as before, but began at another time.
    return row.state, row.datetime_start, row.datetime_complete


def _is_whole(trial: FrozenTrial) -> bool:
    if trial.state == TrialState.WAITING:
        return REQUEST in trial.user_attrs
    return trial.state == TrialState.RUNNING and bool(trial.params)
