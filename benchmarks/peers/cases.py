"""What every way of running trials is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.work import WORK_S

#: Trials at once, wherever that can be said.
AT_ONCE = 2
#: Time limit of one trial, where a way has one; asked for only in the cases that need it.
TRIAL_LIMIT_S = 3.0


@dataclass(frozen=True)
class Case:
    """One objective's behaviour, and how many trials of it are asked for."""

    name: str
    trials: int
    quick_trials: int  #: with `--quick`
    most_s: float  #: the run is ended after so long
    quiet_s: float | None = None  #: or when nothing has happened for so long, after the first trial
    limited: bool = False  #: trials have the time limit
    weighed: bool = False  #: memory is measured once the last trial has ended, and where the CPU time went

    def ideal_s(self, trials: int) -> float:
        """Return how long the work alone would take, were there no cost beside it."""
        return trials * WORK_S / AT_ONCE


CASES = {
    case.name: case
    for case in (
        Case("noop", 100, 20, most_s=300, weighed=True),
        Case("torch", 20, 8, most_s=300, weighed=True),
        Case("memory", 8, 4, most_s=120, weighed=True),
        Case("killed", 10, 6, most_s=90, quiet_s=15),
        Case("hanging", 10, 6, most_s=90, quiet_s=15, limited=True),
        Case("stubborn", 10, 6, most_s=90, quiet_s=15, limited=True),
    )
}
