"""Starting points of a submission: which comes next, and none of them twice when submitters race."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from vrampool.messages import SubmissionSpec
from vrampool.storage import Catalog, mark_of


class StartingPoints:
    """The points of one submission.

    Args:
        catalog: Keeps whose point it is where `skip_if_exists` was asked for.
        spec: The submission.
    """

    def __init__(self, catalog: Catalog, spec: SubmissionSpec) -> None:
        self._catalog = catalog
        self._spec = spec
        self._done = not spec.points

    def next(self, trials: Sequence[FrozenTrial]) -> int | None:
        """Return the index of the next point that is still to be created; None when there is none left.

        Args:
            trials: All trials of the study, as read just now.
        """
        if self._done:
            return None
        marks = [mark for trial in trials if (mark := mark_of(trial)) is not None]
        made = {mark.point for mark in marks if mark.submission == self._spec.submission_id}
        for index, point in enumerate(self._spec.points):
            if index not in made and (not self._spec.skip_if_exists or self._reserve(point, trials)):
                return index
        self._done = True
        return None

    def release(self, index: int) -> None:
        """Nobody has tried the point, its trial was cancelled: whoever submits it next shall."""
        if self._spec.skip_if_exists:
            self._catalog.release_point(
                self._spec.study_name, _digest(self._spec.points[index]), self._spec.submission_id
            )

    def _reserve(self, point: Mapping[str, Any], trials: Sequence[FrozenTrial]) -> bool:
        for trial in trials:
            tried = trial.system_attrs.get("fixed_params") or trial.params
            if dict(tried) == point and (mark_of(trial) is None or trial.state != TrialState.FAIL):
                return False
        return self._catalog.reserve_point(self._spec.study_name, _digest(point), self._spec.submission_id)


def _digest(point: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(point, sort_keys=True).encode()).hexdigest()
