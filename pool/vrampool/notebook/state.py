"""From a handle to the state of its card."""

from __future__ import annotations

import time
from typing import Any

from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from vrampool.messages import EndKind
from vrampool.notebook.card import CardState, RunningLine
from vrampool.storage import attempt_of, mark_of
from vrampool.waiting import device_labels


def read_card(handle: Any) -> CardState:
    """Read what a card shows of a submission; the memory of running trials is left out while Redis is away."""
    progress = handle.progress()
    trials: list[FrozenTrial] = handle.trials
    study = handle.study
    single = len(study.directions) == 1
    complete = [t for t in trials if t.state == TrialState.COMPLETE and t.datetime_complete is not None]
    complete.sort(key=lambda trial: (trial.datetime_complete, trial.number))
    best, params = _best(study, single)
    failure = next((f"{line} ({count} times)" if count > 1 else line for line, count in handle.failures().items()), "")
    return CardState(
        study=handle.study_name,
        state=str(progress.state),
        finished=progress.finished,
        wanted=progress.wanted,
        waiting=progress.waiting,
        counts=progress.counts,
        running=progress.running,
        best=best,
        best_params=params,
        values=[trial.value for trial in complete if trial.value is not None] if single else [],
        maximize=single and study.direction == StudyDirection.MAXIMIZE,
        ooms=sum(_ran_out(trial) for trial in trials),
        retries=sum((mark := mark_of(trial)) is not None and mark.retry_of is not None for trial in trials),
        trials=_running(handle),
        failure=failure,
        reason=progress.reason,
        clock=time.strftime("%H:%M:%S"),
    )


def _best(study: Any, single: bool) -> tuple[str, dict[str, Any]]:
    if not single:
        return f"{len(study.best_trials)} trials on the Pareto front", {}
    try:
        best = study.best_trial
    except ValueError:  # nothing complete yet
        return "", {}
    return f"{best.value:.6g} (trial {best.number})", dict(best.params)


def _ran_out(trial: FrozenTrial) -> bool:
    facts = attempt_of(trial)
    return facts is not None and facts.end in (EndKind.OOM, EndKind.INFEASIBLE)


def _running(handle: Any) -> list[RunningLine]:
    workers = handle.workers()
    labels = device_labels(workers)
    now = time.time()
    lines = [
        RunningLine(item.number, labels[worker.name], item.measured_bytes, item.lease_bytes, max(0.0, now - item.since))
        for worker in workers
        for item in worker.running
        if item.study == handle.study_name
    ]
    return sorted(lines, key=lambda line: line.number)
