"""Whether the failures of a submission's trials mean that the study itself is broken. Pure."""

from __future__ import annotations

from optuna.trial import FrozenTrial, TrialState

from vrampool import retries
from vrampool.messages import AttemptFacts, EndKind, SubmissionSpec
from vrampool.storage import attempt_of

#: A study whose first trials all fail alike is broken; going on would only burn the night.
ALIKE_LIMIT = 5


class Failures:
    """Notes how the root trials of a submission ended.

    Args:
        spec: The submission.
    """

    def __init__(self, spec: SubmissionSpec) -> None:
        self._spec = spec
        self._first: list[str] = []
        self._uncaught: str | None = None

    def note(self, trial: FrozenTrial) -> None:
        """Take in a root trial that has ended for good; its last attempt."""
        if self._uncaught is None and (uncaught := retries.uncaught(trial, self._spec)) is not None:
            self._uncaught = f"trial {trial.number} raised {failure_line(uncaught)}"
        if len(self._first) >= ALIKE_LIMIT:
            return
        facts = attempt_of(trial)
        alike = ""
        if trial.state == TrialState.FAIL and facts is not None and facts.end in (EndKind.FAILED, EndKind.REFUSED):
            alike = failure_line(facts)
        self._first.append(alike)

    def broken(self) -> str | None:
        """Return why the study should stop: exceptions outside `catch`, or the first trials failing alike."""
        if self._spec.catch is not None:
            return self._uncaught
        firsts = self._first
        if len(firsts) >= ALIKE_LIMIT and firsts[0] and len(set(firsts)) == 1:
            return f"the first {ALIKE_LIMIT} trials all failed alike: {firsts[0]}"
        return None


def failure_line(facts: AttemptFacts) -> str:
    """Return a failure in one line: its class and the first line of its text."""
    first = facts.text.strip().splitlines()[0] if facts.text.strip() else facts.end
    return first[:300]
