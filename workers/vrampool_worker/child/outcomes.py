"""How an objective ended, as text and numbers: exceptions never travel as objects."""

from __future__ import annotations

import math
import os
import reprlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from vrampool.memory.verdicts import MemoryFault, classify
from vrampool.messages import Outcome, OutcomeKind
from vrampool_worker.child.stopping import Stopped

#: Characters kept of an error's text and of its traceback; the log of the attempt has more.
TEXT_LIMIT = 16_000
TRACEBACK_LIMIT = 64_000


def from_value(returned: Any, n_objectives: int) -> Outcome:
    """Judge what an objective returned by Optuna's rules: one number, or a sequence with one for each objective."""
    one = isinstance(returned, (str, bytes)) or not isinstance(returned, Sequence)
    values = [returned] if one else list(returned)
    kind = _qualified(type(returned)).removeprefix("builtins.")
    shown = f"the objective returned {reprlib.repr(returned)} of type {kind}"
    numbers = []
    for value in values:
        number = _as_float(value)
        if number is None:
            return _failed(f"{shown}, which could not be cast to float; return a number for each objective")
        if math.isnan(number):
            return _failed(f"{shown}; NaN is no value. Report it, or raise optuna.TrialPruned")
        numbers.append(number)
    if len(numbers) != n_objectives:
        return _failed(f"{shown}: {len(numbers)} values for a study with {n_objectives} objectives")
    return Outcome(kind=OutcomeKind.VALUE, values=numbers)


def _as_float(value: Any) -> float | None:
    if isinstance(value, (str, bytes, bytearray)):
        return None  # float("0.5") would pass; Optuna's own check does not let it
    try:
        return float(value)
    except Exception:  # TypeError, ValueError, OverflowError, or whatever a user's __float__ raises
        return None


def _failed(text: str) -> Outcome:
    return Outcome(kind=OutcomeKind.FAILED, text=text)


def from_error(error: BaseException, *, loading: bool = False) -> Outcome:
    """Judge what an objective raised.

    Args:
        loading: It was raised while the objective was looked for; the text then says on which machine.
    """
    text = shorten(_text_of(error), TEXT_LIMIT)
    if isinstance(error, Stopped):
        return Outcome(kind=OutcomeKind.STOPPED, text=text)
    pruned = getattr(sys.modules.get("optuna.exceptions"), "TrialPruned", None)
    if pruned is not None and isinstance(error, pruned):
        return Outcome(kind=OutcomeKind.PRUNED, text=text)
    if loading:
        text = f"{text} (on host {os.uname().nodename})"
    fault = _memory_fault(error)
    return Outcome(
        kind=OutcomeKind.FAILED if fault is None else OutcomeKind.OOM,
        type_name=_qualified(type(error)),
        mro=tuple(_qualified(kind) for kind in type(error).__mro__ if kind is not object),
        text=text,
        traceback=_traceback_of(error),
        memory={} if fault is None else fault.to_dict(),
        exit_code=_exit_code(error),
        loading=loading,
    )


def _exit_code(error: BaseException) -> int | None:
    if not isinstance(error, SystemExit):
        return None
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1  # as the interpreter does with a text


def _text_of(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"exit code {_exit_code(error)}" + (f": {error.code}" if isinstance(error.code, str) else "")
    try:
        return str(error)
    except Exception:
        return "(its text cannot be made: its __str__ raises)"


def _memory_fault(error: BaseException) -> MemoryFault | None:
    for cause in _causes(error):
        kind = type(cause)
        bases = [_qualified(base) for base in kind.__mro__]
        fault = classify(kind.__qualname__, kind.__module__, bases, _text_of(cause))
        if fault is not None:
            return fault
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what it was explicitly raised from, and the members of groups."""
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if current.__cause__ is not None:
            waiting.append(current.__cause__)
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(current.exceptions)


def _traceback_of(error: BaseException) -> str:
    """Return the traceback from the objective's first frame on."""
    trace = error.__traceback__
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] in _OURS:
        trace = trace.tb_next
    try:
        lines = traceback.format_exception(type(error), error, trace)
    except Exception:
        lines = [f"{_qualified(type(error))}: (its traceback cannot be made)"]
    return shorten("".join(lines), TRACEBACK_LIMIT)


#: Packages whose frames stand above the objective's. Not `__main__`: that is what a notebook's functions are from.
_OURS = ("vrampool", "vrampool_worker", "importlib")


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def shorten(text: str, limit: int) -> str:
    """Cut the middle out of a long text and say so."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} of {len(text)} characters left out) ...\n{text[-half:]}"
