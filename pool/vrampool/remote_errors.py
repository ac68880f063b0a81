"""An exception of the objective, raised where its study was submitted. It travelled as text; nothing is unpickled."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from optuna.trial import FrozenTrial

from vrampool import retries
from vrampool.errors import ObjectiveFailedError, StudyFailedError
from vrampool.messages import AttemptFacts, SubmissionSpec


def study_failed(trials: Iterable[FrozenTrial], spec: SubmissionSpec, reason: str) -> StudyFailedError:
    """Return what `Pool.optimize` raises for a submission that has failed.

    Args:
        trials: Its root trials that have ended, in order of their ends.
        spec: The submission.
        reason: Why it failed, for a failure that no trial's exception explains.
    """
    for trial in trials:
        facts = retries.uncaught(trial, spec)
        if facts is not None:
            return _raised_in(trial.number, facts)
    return StudyFailedError(reason)


def _raised_in(number: int, facts: AttemptFacts) -> ObjectiveFailedError:
    text = f"trial {number} raised {facts.text}\n\nin the trial's process:\n{facts.traceback}"
    more: dict[str, Any] = {
        "type_name": facts.type_name,
        "remote_traceback": facts.traceback,
        "trial_number": number,
    }
    try:
        return _twin(facts.type_name)(text, **more)
    except Exception:  # the user's class is made in a way of its own
        return ObjectiveFailedError(text, **more)


def _twin(type_name: str) -> type[ObjectiveFailedError]:
    """Return an `ObjectiveFailedError` that is also of the class raised, where this process has that class.

    So ``except ValueError:`` around the call catches what it caught around `study.optimize`. Whoever names a class in
    his `except` has it, so nothing is imported here.
    """
    original = _find(type_name)
    if original is None or issubclass(original, ObjectiveFailedError):
        return ObjectiveFailedError
    names = {"__module__": ObjectiveFailedError.__module__, "__qualname__": ObjectiveFailedError.__qualname__}
    try:
        return type(ObjectiveFailedError.__name__, (ObjectiveFailedError, original), names)
    except TypeError:  # two layouts that do not go together
        return ObjectiveFailedError


def _find(type_name: str) -> type[Exception] | None:
    parts = type_name.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        found: object = sys.modules.get(".".join(parts[:depth]))
        for part in parts[depth:]:
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return None
