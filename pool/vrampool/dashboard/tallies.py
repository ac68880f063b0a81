"""Sums over the attempts of a study: ends, verdicts, retries, the tax of starting. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from optuna.trial import FrozenTrial

from vrampool.messages import AttemptFacts, EndKind, Verdict
from vrampool.storage import attempt_of, lost_reason, mark_of

#: Upper bounds in seconds of the buckets in which starts are counted.
START_BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, math.inf)


@dataclass
class Tally:
    """What is counted of attempts that have ended. Each attempt is counted once, whoever adds it how often."""

    states: Counter[str] = field(default_factory=Counter)  #: by Optuna's state
    ends: Counter[str] = field(default_factory=Counter)  #: by `EndKind`
    verdicts: Counter[str] = field(default_factory=Counter)  #: of out-of-memory errors
    retries: int = 0  #: attempts that followed a failed one
    starts: Counter[float] = field(default_factory=Counter)  #: start-up tax by bucket
    start_s: float = 0.0  #: start-up tax in all
    run_s: float = 0.0  #: of the objectives, in all
    wait_s: float = 0.0  #: from enqueue to start, in all
    _retried: set[int] = field(default_factory=set, repr=False)
    _counted: set[int] = field(default_factory=set, repr=False)

    def add(self, trials: Iterable[FrozenTrial]) -> None:
        """Count what has ended since."""
        for trial in trials:
            if trial.number in self._counted:
                continue
            mark = mark_of(trial)
            if mark is None:
                continue
            if mark.retry_of is not None and trial.number not in self._retried:
                self._retried.add(trial.number)
                self.retries += 1
            if trial.state.is_finished():
                self._counted.add(trial.number)
                self._end(trial)

    def _end(self, trial: FrozenTrial) -> None:
        self.states[trial.state.name] += 1
        facts = attempt_of(trial)
        if facts is None:
            self.ends[EndKind.LOST if lost_reason(trial) is not None else EndKind.CANCELLED] += 1
            return
        self.ends[facts.end] += 1
        if facts.end == EndKind.OOM:
            self.verdicts[facts.verdict or Verdict.UNKNOWN] += 1
        tax_s = start_tax_s(facts)
        if tax_s is not None:
            self.starts[next(bound for bound in START_BUCKETS_S if tax_s <= bound)] += 1
            self.start_s += tax_s
        self.run_s += facts.run_s or 0.0
        self.wait_s += facts.wait_s or 0.0

    @property
    def started(self) -> int:
        """Attempts whose start was timed."""
        return self.starts.total()


def start_tax_s(facts: AttemptFacts) -> float | None:
    """Return the seconds in which an attempt held its lease and did not work yet; None when they were not taken."""
    if facts.spawn_s is None and facts.handover_s is None:
        return None
    return max(0.0, facts.spawn_s or 0.0) + max(0.0, facts.handover_s or 0.0)


def total_of(tallies: Sequence[Tally]) -> Tally:
    """Return the sum of several studies."""
    whole = Tally()
    for tally in tallies:
        whole.states += tally.states
        whole.ends += tally.ends
        whole.verdicts += tally.verdicts
        whole.starts += tally.starts
        whole.retries += tally.retries
        whole.start_s += tally.start_s
        whole.run_s += tally.run_s
        whole.wait_s += tally.wait_s
    return whole
