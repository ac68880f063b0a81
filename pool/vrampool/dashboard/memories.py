"""A study's memory as the page shows it: rows and record as `vrampool explain` has them, each trial read once. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from optuna.trial import FrozenTrial

from vrampool.measured import trial_memory
from vrampool.memory.explaining import TrialMemory, record_of
from vrampool.messages import EndKind
from vrampool.units import MIB

#: Points of a chart; more than its pixels say nothing.
MOST_POINTS = 400


class Memories:
    """The memory of a study's attempts. Finished ones do not change, so they are read once."""

    def __init__(self) -> None:
        self._ended: dict[int, TrialMemory] = {}
        self._view: dict[str, Any] = {}

    def add(self, trials: Sequence[FrozenTrial]) -> dict[str, Any]:
        """Take in a study's trials, all of them, and return what is shown."""
        if len(trials) < len(self._ended):  # the study was deleted, and made anew under its name
            self._ended = {}
        known = len(self._ended)
        running = []
        for trial in trials:
            if not trial.state.is_finished():
                running.append(trial_memory(trial))
            elif trial.number not in self._ended:
                self._ended[trial.number] = trial_memory(trial)
        if len(self._ended) != known or running or not self._view:
            self._view = _view([*self._ended.values(), *running])
        return self._view


def _view(rows: Sequence[TrialMemory]) -> dict[str, Any]:
    """Return points [number, predicted MiB, asked MiB, peak MiB, out of memory, the peak is a lower bound] and sums."""
    measured = [row for row in rows if row.peak_bytes]
    points = [
        [
            row.number,
            _mib(row.predicted_bytes),
            _mib(row.request_bytes),
            _mib(row.peak_bytes),
            row.end in (EndKind.OOM, EndKind.INFEASIBLE),
            row.at_least,
        ]
        for row in measured
        if row.request_bytes
    ]
    record = record_of(rows)
    return {
        "memory": thin(points, 4),
        "alone": len(measured) - len(points),
        "next_bytes": max(rows, key=lambda row: row.number).request_bytes if rows else None,  # likely
        "predicted": record.predicted,
        "prediction_error": _part(record.median_error),
        "asked_too_little": record.under,
        "over_reserved": _part(record.over_reserved),
    }


def thin(points: list[list[Any]], keep: int) -> list[list[Any]]:
    """Return at most about `MOST_POINTS` points: those to keep, and evenly chosen others. The last one stays.

    Args:
        points: In order.
        keep: Place of what is true of a point that is to be kept.
    """
    if len(points) <= MOST_POINTS:
        return points
    step = math.ceil(len(points) / MOST_POINTS)
    last = len(points) - 1
    kept = [p for place, p in enumerate(points) if place % step == 0 or place == last or p[keep]]
    return kept[-2 * MOST_POINTS :]


def _mib(value: int | None) -> float | None:
    return None if value is None else round(value / MIB, 1)


def _part(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
