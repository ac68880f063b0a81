"""What follows from how an attempt ended: try again, done for good, or still under way. Pure: no storage is asked.

All is read from the trials themselves, so that any coordinator, and whoever shows progress, comes to the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from vrampool.memory.requests import ALMOST_ALL, UNSURE_FACTOR
from vrampool.messages import AttemptFacts, EndKind, SubmissionSpec, Verdict
from vrampool.storage.marks import (
    attempt_of,
    cancelled_reason,
    claimed_by,
    lost_reason,
    mark_of,
    requested_bytes,
    wished_bytes,
)
from vrampool.units import format_bytes

#: A trial that was too large for its lease is tried again with so much more than the lease,
_LEASE_FACTOR = 1.5
#: twice as much where so little was known that it could as well have done with that,
_UNSURE_LEASE_FACTOR = 2
#: and with so much more than it is known to have needed.
_NEED_FACTOR = 1.2
_INFRA_ENDS = frozenset({EndKind.CRASHED, EndKind.LOST, EndKind.DEVICE_LOST})
_FREE_VERDICTS = frozenset({Verdict.VICTIM, Verdict.SHRINK})
#: So often at most a trial is tried with more; each time it gets half as much again, or all that another device has.
_MOST_OOMS = 12
#: It needed more than it had. None: told by a version that knew no verdicts.
_GUILTY_VERDICTS = frozenset({Verdict.CULPRIT, Verdict.UNKNOWN, Verdict.SWALLOWED, None})


@dataclass(frozen=True)
class Retry:
    """The attempt failed and another one is due."""

    request_bytes: int | None  #: None: a whole device
    reason: str
    avoid_device: str | None = None  #: id of a device the next attempt should not get at once
    beyond_bytes: int = 0  #: of a whole device: only one that has more than this
    wish_bytes: int | None = None  #: what is lent to it beyond its request, where nobody else wants it

    @property
    def request(self) -> dict[str, Any]:
        """Return it as it is kept on the next attempt (`vrampool:request`)."""
        asked = {"bytes": self.request_bytes, "reason": self.reason, "avoid": self.avoid_device}
        more = {"beyond": self.beyond_bytes, "wish": self.wish_bytes}
        return asked | {name: value for name, value in more.items() if value}


@dataclass(frozen=True)
class Final:
    """The root trial has ended for good."""

    counts: bool  #: towards `n_trials`
    reason: str


@dataclass(frozen=True)
class Pending:
    """The root trial goes on: the attempt waits or runs, or a later attempt has taken over."""

    reason: str


Step = Retry | Final | Pending


def next_step(
    trial: FrozenTrial, spec: SubmissionSpec, trials_of_root: Sequence[FrozenTrial], *, largest_bytes: int | None
) -> Step:
    """Decide what follows from an attempt.

    Args:
        trial: One attempt; the newest, normally.
        spec: The submission it belongs to.
        trials_of_root: All attempts at the same root trial, this one among them, in any order.
        largest_bytes: Budget of the largest device of the pool; None: not known, requests are not capped. Whether
            the answer is a retry does not depend on it.
    """
    if any((mark := mark_of(other)) is not None and mark.retry_of == trial.number for other in trials_of_root):
        return Pending("a later attempt took over")
    if trial.state == TrialState.WAITING:
        return Pending("waiting")
    if claimed_by(trial) is None and trial.datetime_start is not None:
        # Each claim of ours is written with the start, so this one was popped by somebody's own `optimize()`.
        return Final(False, "taken by another process that works on the study")
    if trial.state == TrialState.RUNNING:
        return Pending("running")
    if trial.state == TrialState.COMPLETE:
        return Final(True, "complete")
    if trial.state == TrialState.PRUNED:
        facts = attempt_of(trial)
        infeasible = facts is not None and facts.end == EndKind.INFEASIBLE
        return Final(True, _first_line(facts.text) or "fits no device" if facts and infeasible else "pruned")
    return _after_failure(trial, spec, _until(trial, trials_of_root), largest_bytes)


def _after_failure(
    trial: FrozenTrial, spec: SubmissionSpec, attempts: Sequence[FrozenTrial], largest_bytes: int | None
) -> Step:
    if (reason := cancelled_reason(trial)) is not None:
        return Final(False, reason or "cancelled")
    facts = attempt_of(trial)
    if (reason := lost_reason(trial)) is not None:
        return _after_infra(trial, spec, attempts, reason or "its worker went away")
    if facts is None or facts.end in (EndKind.COMPLETE, EndKind.PRUNED):
        # Nothing of ours fails a trial without a word; somebody else did, from a dashboard perhaps.
        return Final(True, "failed from outside")
    text = _first_line(facts.text) or str(facts.end)
    if facts.end == EndKind.OOM:
        return _after_oom(trial, spec, attempts, facts, largest_bytes)
    if facts.end in _INFRA_ENDS or (facts.end == EndKind.TIMEOUT and spec.retry_timeouts):
        return _after_infra(trial, spec, attempts, text)
    if facts.end == EndKind.PREEMPTED:
        return Retry(requested_bytes(trial), f"handed back by {facts.worker or 'its worker'}: {text}")
    return Final(facts.end != EndKind.CANCELLED, text)


def _after_infra(trial: FrozenTrial, spec: SubmissionSpec, attempts: Sequence[FrozenTrial], text: str) -> Step:
    charged = _INFRA_ENDS | ({EndKind.TIMEOUT} if spec.retry_timeouts else set())
    failures = sum(_end_of(attempt) in charged for attempt in attempts)
    if failures == spec.max_infra_retries and _end_of(trial) == EndKind.LOST:
        # A worker dies with all its trials, and one of them may have been to blame: the last attempt at each is alone.
        return Retry(None, f"{text}: it gets a device for itself")
    if failures <= spec.max_infra_retries:
        return Retry(requested_bytes(trial), text)
    return Final(True, text if failures == 1 else f"{text}, {failures} attempts")


def _after_oom(
    trial: FrozenTrial,
    spec: SubmissionSpec,
    attempts: Sequence[FrozenTrial],
    facts: AttemptFacts,
    largest_bytes: int | None,
) -> Step:
    request = requested_bytes(trial)
    if facts.verdict in _FREE_VERDICTS:
        return _after_others_fault(request, spec, attempts, facts)
    if facts.verdict == Verdict.HOST:
        tries = len(_ooms(attempts, {Verdict.HOST}))
        if tries == 1:
            return Retry(request, "host memory ran out")
        return Final(True, f"host memory ran out, {tries} attempts")
    lease = _lease_of(facts)
    before = [_lease_of(other) for other in _ooms(attempts[:-1], _GUILTY_VERDICTS)]
    if before and lease <= max(before) and (request is not None or len(before) >= _MOST_OOMS):
        # Requests only grow until the largest device caps them: this one has had all there is.
        return Final(True, f"out of memory with {format_bytes(max(before))}, the most that any device has")
    most = max([lease, *before])
    unsure = (wished_bytes(trial) or 0) >= _UNSURE_LEASE_FACTOR * most
    factor = _UNSURE_LEASE_FACTOR if unsure else _LEASE_FACTOR
    need = max(int(factor * most), int(_NEED_FACTOR * _need_of(facts)))
    if need <= 0:
        return Retry(None, "out of memory; nothing is known of its need")
    words = f"out of memory with {format_bytes(lease)}: tried again with"
    # One that would get almost all of a device gets all of it: another attempt costs more than the little beside it.
    if largest_bytes is None or need <= ALMOST_ALL * largest_bytes:
        return Retry(need, f"{words} {format_bytes(need)}", wish_bytes=UNSURE_FACTOR * need)
    # A whole device, not all of its bytes: a desktop on it would make those never free at once.
    return Retry(None, f"{words} all that a device with more than {format_bytes(most)} has", beyond_bytes=most)


def _after_others_fault(
    request: int | None, spec: SubmissionSpec, attempts: Sequence[FrozenTrial], facts: AttemptFacts
) -> Step:
    """Somebody else took the memory, or we did by shrinking the lease: the trial is not to blame."""
    victims = len(_ooms(attempts, _FREE_VERDICTS))
    limit = spec.max_victim_retries
    if victims <= limit and facts.verdict == Verdict.SHRINK:
        return Retry(request, "out of memory after its lease was shrunk")
    if victims <= limit:
        return Retry(request, "out of memory by others' use of the device", facts.device or None)
    if victims <= limit + max(limit, 1):
        return Retry(None, f"out of memory by others' use of the device {victims} times: it gets a device for itself")
    return Final(True, f"out of memory by others' use of the device, {victims} attempts")


def uncaught(trial: FrozenTrial, spec: SubmissionSpec) -> AttemptFacts | None:
    """Return the facts of a trial whose objective raised what `catch` does not name; None for any other.

    A return value that is no number fails the trial and raises nothing, as in Optuna.
    """
    facts = attempt_of(trial) if trial.state == TrialState.FAIL else None
    if facts is None or facts.end != EndKind.FAILED or not facts.mro or spec.catch is None:
        return None
    return None if set(spec.catch) & set(facts.mro) else facts


@dataclass(frozen=True)
class Root:
    """One asked-for trial: its attempts in order, and where it stands."""

    number: int
    attempts: tuple[FrozenTrial, ...]
    step: Step

    @property
    def last(self) -> FrozenTrial:
        return self.attempts[-1]

    @property
    def finished(self) -> bool:
        return isinstance(self.step, Final)

    @property
    def counted(self) -> bool:
        return isinstance(self.step, Final) and self.step.counts


def roots(trials: Iterable[FrozenTrial], spec: SubmissionSpec, *, largest_bytes: int | None = None) -> list[Root]:
    """Return a submission's root trials in order of their numbers, found among any trials of its study."""
    found: dict[int, list[FrozenTrial]] = {}
    for trial in trials:
        mark = mark_of(trial)
        if mark is not None and mark.submission == spec.submission_id:
            found.setdefault(trial.number if mark.root is None else mark.root, []).append(trial)
    result = []
    for number in sorted(found):
        attempts = sorted(found[number], key=lambda trial: trial.number)
        step = next_step(attempts[-1], spec, attempts, largest_bytes=largest_bytes)
        result.append(Root(number, tuple(attempts), step))
    return result


def count_of_others(trials: Iterable[FrozenTrial], submission_id: str) -> int:
    """Count the root trials of a study that are not of a submission: of other submissions, and run without us.

    Those under way count, those that were cancelled do not. A trial that a user has enqueued, and that nobody has
    taken yet, does not: it is about to become somebody's.
    """
    found: dict[object, bool] = {}
    for trial in trials:
        mark = mark_of(trial)
        if mark is None:
            found[trial.number] = trial.state != TrialState.WAITING
        elif mark.submission != submission_id:
            # The last attempt decides; one that will be retried counts, for its root is under way.
            facts = attempt_of(trial)
            cancelled = cancelled_reason(trial) is not None or (facts is not None and facts.end == EndKind.CANCELLED)
            root = trial.number if mark.root is None else mark.root
            found[mark.submission, root] = not (trial.state == TrialState.FAIL and cancelled)
    return sum(found.values())


def _until(trial: FrozenTrial, attempts: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return the attempts up to `trial`, in order; it is the last one."""
    return [*sorted((a for a in attempts if a.number < trial.number), key=lambda a: a.number), trial]


def _end_of(trial: FrozenTrial) -> str | None:
    if lost_reason(trial) is not None:
        return EndKind.LOST
    facts = attempt_of(trial)
    return None if facts is None else facts.end


def _ooms(attempts: Iterable[FrozenTrial], verdicts: Iterable[str | None]) -> list[AttemptFacts]:
    """Return the facts of attempts that ran out of memory with one of the verdicts."""
    wanted = set(verdicts)
    return [
        facts
        for attempt in attempts
        if _end_of(attempt) == EndKind.OOM and (facts := attempt_of(attempt)) is not None and facts.verdict in wanted
    ]


def _lease_of(facts: AttemptFacts) -> int:
    """Return what the attempt could have when it ran out of memory."""
    return facts.lease_at_end_bytes or facts.lease_bytes


def _need_of(facts: AttemptFacts) -> int:
    """Return what the attempt is known to have needed."""
    # One that failed before any reading saw it held at least what the driver takes for a process.
    peak = facts.peak_bytes or facts.overhead_bytes or 0
    # One that swallowed the error went on, and its peak may be of what it did then.
    held = facts.held_bytes if facts.verdict == Verdict.SWALLOWED and facts.held_bytes is not None else peak
    return max(peak, held + (facts.asked_bytes or 0))


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0] if lines else ""
