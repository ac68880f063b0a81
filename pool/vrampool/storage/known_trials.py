"""Unfinished trials as a process has read them, for one that reads a study again and again.

A trial that runs has some twenty rows in six tables. The coordinator reads the study for every trial that it makes, so
with 1 000 devices reading what runs cost more than all else that it did (docs/scale.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from vrampool.storage.marks import REQUEST

#: What an objective adds to a running trial is seen so late at most, where few run.
MAX_AGE_S = 2.0
#: Where many run, so many are read anew in a second at most: whoever reads spends a small part of his time on them.
_A_SECOND = 100
#: More is never unfinished; it is what deleted studies left behind.
_MOST = 20_000


#: A trial's id, and what its row says beside: its state, and when it began. One that was handed back and claimed again
#: runs as before, but began at another time.
Row = tuple[int, Hashable]


@dataclass(frozen=True)
class _Known:
    row: Hashable
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

    def of(self, rows: Sequence[Row]) -> dict[int, FrozenTrial]:
        """Return the trials of these rows that need not be read, by id."""
        oldest_s = self._clock() - max(self._max_age_s, len(rows) / _A_SECOND)
        found = {}
        for trial_id, row in rows:
            known = self._known.get(trial_id)
            if known is not None and known.row == row and known.read_at_s > oldest_s:
                found[trial_id] = known.trial
        return found

    def note(self, rows: Mapping[int, Hashable], trials: Sequence[FrozenTrial]) -> None:
        """Take in trials that were read just now, and their rows by id."""
        now_s = self._clock()
        if len(self._known) > _MOST:
            self._known.clear()
        for trial in trials:
            if trial._trial_id in rows and _is_whole(trial):
                self._known[trial._trial_id] = _Known(rows[trial._trial_id], trial, now_s)
            else:
                self._known.pop(trial._trial_id, None)


def _is_whole(trial: FrozenTrial) -> bool:
    if trial.state == TrialState.WAITING:
        return REQUEST in trial.user_attrs
    return trial.state == TrialState.RUNNING and bool(trial.params)
