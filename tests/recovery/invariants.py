"""What must hold when a study is over, whatever was killed meanwhile: read from the storage, and from the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from optuna.trial import FrozenTrial, TrialState
from recovery.execution_log import ExecutionLog
from recovery.objectives import STEPS, report_of, value_of

from vrampool import retries
from vrampool.messages import EndKind, SubmissionSpec
from vrampool.storage import attempt_of, claimed_by, mark_of
from vrampool.storage.marks import PLAN, cancelled_reason, lost_reason

#: What the pool is to blame for: each such attempt is followed by exactly one other.
RETRIED = {EndKind.CRASHED, EndKind.PREEMPTED, EndKind.DEVICE_LOST}
GOOD = (TrialState.COMPLETE, TrialState.PRUNED)
NAMES = {"a": {"x", "n", "kind", "u"}, "b": {"x", "n", "kind", "v"}}


def faults_of(trials: Sequence[FrozenTrial], spec: SubmissionSpec, log: ExecutionLog) -> list[str]:
    """Return every broken invariant of a study of `objectives.search` in one line each; none: all is well.

    Args:
        trials: All trials of the study. No other submission works on it, and nobody stopped it.
        spec: The submission, over by now.
        log: What the objective wrote.
    """
    return [*_of_storage(trials, spec), *_of_lineage(trials), *_of_values(trials), *_of_log(trials, log)]


def _of_storage(trials: Sequence[FrozenTrial], spec: SubmissionSpec) -> Iterator[str]:
    if [trial.number for trial in trials] != list(range(len(trials))):
        yield "numbers have gaps"
    for trial in trials:
        if not trial.state.is_finished():
            yield f"trial {trial.number} is {trial.state.name} for ever"
    roots = retries.roots(trials, spec)
    counted = sum(root.counted for root in roots)
    if counted != spec.n_trials:
        yield f"{counted} root trials counted instead of {spec.n_trials}"
    for root in roots:
        if not root.finished:
            yield f"root {root.number} is not over: {root.step}"
        elif root.last.state not in GOOD:
            yield f"root {root.number} was given up: {root.step}"
    for trial in trials:
        if trial.state in GOOD and claimed_by(trial) is None:
            yield f"trial {trial.number} is {trial.state.name} and was never claimed"
        if trial.state == TrialState.FAIL:
            if attempt_of(trial) is None and lost_reason(trial) is None and cancelled_reason(trial) is None:
                yield f"trial {trial.number} failed without a word"
            if trial.values is not None:
                yield f"trial {trial.number} failed with a value"


def _of_lineage(trials: Sequence[FrozenTrial]) -> Iterator[str]:
    by_number = {trial.number: trial for trial in trials}
    marks = {trial.number: mark for trial in trials if (mark := mark_of(trial)) is not None}
    retried = Counter(mark.retry_of for mark in marks.values() if mark.retry_of is not None)
    for trial in trials:
        facts = attempt_of(trial)
        lost = trial.state == TrialState.FAIL and (
            lost_reason(trial) is not None or (facts is not None and facts.end in RETRIED)
        )
        if retried[trial.number] != lost:
            yield f"trial {trial.number} ({trial.state.name}, lost: {lost}) was retried {retried[trial.number]} times"
        mark = marks.get(trial.number)
        if mark is None or mark.retry_of is None:
            continue
        parent, parents = by_number[mark.retry_of], marks[mark.retry_of]
        root = parent.number if parents.root is None else parents.root
        if (mark.attempt, mark.root) != (parents.attempt + 1, root):
            yield f"trial {trial.number} has a wrong lineage: {mark} after {parents}"
        if trial.system_attrs.get("failed_trial") != root:
            yield f"trial {trial.number} names {trial.system_attrs.get('failed_trial')} as the first, not {root}"
        if trial.user_attrs.get(PLAN) != parent.user_attrs.get(PLAN):
            yield f"trial {trial.number} has another plan than trial {parent.number}, which it retries"
        if trial.state in GOOD and any(trial.params.get(name) != value for name, value in parent.params.items()):
            yield f"trial {trial.number} has other parameters than trial {parent.number}, which it retries"


def _of_values(trials: Sequence[FrozenTrial]) -> Iterator[str]:
    for trial in trials:
        if trial.state not in GOOD:
            continue
        if set(trial.params) != NAMES[trial.params["kind"]]:
            yield f"trial {trial.number} has the parameters {sorted(trial.params)}"
            continue
        if trial.state == TrialState.COMPLETE:
            if abs((trial.value or 0.0) - value_of(trial.params)) > 1e-9:
                yield f"the value of trial {trial.number} is not of its parameters"
            if len(trial.intermediate_values) != STEPS:
                yield f"trial {trial.number} has {len(trial.intermediate_values)} reports instead of {STEPS}"
        for step, value in trial.intermediate_values.items():
            if abs(value - report_of(trial.params, step)) > 1e-9:
                yield f"report {step} of trial {trial.number} is not of its parameters"
        if not (trial.datetime_start and trial.datetime_complete and trial.datetime_start <= trial.datetime_complete):
            yield f"trial {trial.number} ended before it began"


def _of_log(trials: Sequence[FrozenTrial], log: ExecutionLog) -> Iterator[str]:
    started, ended = log.times("started"), log.times("ended")
    for number, times in started.items():
        if times > 1:
            yield f"trial {number} was started {times} times"
    for trial in trials:
        times = ended[trial.number]
        if times > 1 or (trial.state in GOOD and times != 1):
            yield f"trial {trial.number} is {trial.state.name} and ended {times} times"
