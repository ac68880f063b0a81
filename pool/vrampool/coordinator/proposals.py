"""Asks the sampler, and asks again when what it proposes is known to fit no device. Refused proposals leave no trial.

The trial that was born for the first proposal is kept and only sampled anew, so numbers, counts and the study stay as
if the refused ones had never been. What was refused is noted on the trial that came of it. Samplers that learn where
not to look are shown the refused ones as trials that did not fit: not told so, the tree-structured Parzen estimator
comes back to the same corner with 83 of 100 proposals (`docs/requests.md`).
"""

from __future__ import annotations

import datetime
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, GridSampler, QMCSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from vrampool.coordinator.sizing import Refusal, Sizing
from vrampool.objectives.random_states import parts_of
from vrampool.storage import REQUEST, QueueView, dump_plan, load_plan
from vrampool.storage.marks import OVER_GIB_ATTR

_log = logging.getLogger("vrampool.coordinator")

#: So many proposals are refused for one trial; then it runs, and is measured.
MOST_REFUSED = 5
#: After so many in a row the next one is drawn at random: else a trial is run for nothing but the sampler's insistence.
_INSISTS = 3
#: So many refused proposals are shown to the sampler, the newest.
_MOST_SHOWN = 64


@dataclass(frozen=True)
class Proposal:
    """What the sampler proposes, and what was refused before it."""

    trial: Trial
    refused: list[dict[str, Any]] = field(default_factory=list)  #: as they are kept in the trial's request


class Proposals:
    """Asks for the trials of one submission.

    Args:
        study: Its storage is `view`.
        view: The coordinator's view of the study.
        sizing: Knows what fits no device.
    """

    def __init__(self, study: Study, view: QueueView, sizing: Sizing) -> None:
        self._study = study
        self._view = view
        self._sizing = sizing
        parts = list(parts_of(study.sampler))
        # They hand out points by number, each once: what is refused would be passed over, or come again for ever.
        self._may_refuse = not any(isinstance(part, (GridSampler, QMCSampler)) for part in parts)
        self._shows = any(isinstance(part, (TPESampler, GPSampler)) for part in parts)
        # It reads no pruned trials, but keeps away from running ones.
        self._as_running = any(isinstance(part, GPSampler) for part in parts)
        self._startup = max((getattr(part, "_n_startup_trials", 0) for part in parts), default=0)
        self._past: list[FrozenTrial] = []  #: refused before earlier trials
        self._shown: list[FrozenTrial] = []
        self._shown_for: object = None

    def remember(self, trial: FrozenTrial) -> None:
        """Take in a trial of the submission: what was refused before it is shown to the sampler."""
        request = trial.user_attrs.get(REQUEST)
        for item in (request.get("refused") if isinstance(request, dict) else None) or ():
            params, distributions = load_plan(item["plan"])
            self._past.append(self._imagine(trial.number, params, distributions, item["over_gib"]))
            self._shown_for = None

    def ask(self, space: dict[str, BaseDistribution], trials: Sequence[FrozenTrial]) -> Proposal:
        """Ask for a trial.

        Args:
            space: What to sample at once.
            trials: All trials of the study, as read just now: what the sampler is shown.
        """
        self._view.read = trials
        self._view.imagined = self._to_show(trials)
        refused: list[dict[str, Any]] = []
        try:
            trial = self._study.ask(fixed_distributions=space)
            while len(refused) < MOST_REFUSED and (refusal := self._refusal(trial)) is not None:
                _log.info("%s/%s: a proposal is refused: %s", self._study.study_name, trial.number, refusal.reason)
                refused.append({"plan": dump_plan(trial), "over_gib": refusal.over_gib, "reason": refusal.reason})
                if self._shows and _finished(trials) >= self._startup:
                    twin = self._imagine(trial.number, trial.params, trial.distributions, refusal.over_gib)
                    self._view.imagined = [*self._view.imagined, twin]
                trial = self._ask_again(trial, space, len(refused))
        finally:
            self._view.imagined, self._view.read = [], None
        return Proposal(trial, refused)

    def _ask_again(self, trial: Trial, space: dict[str, BaseDistribution], refused: int) -> Trial:
        """Have the same trial sampled anew: by the sampler, and where that insists on its corner at random."""
        self._view.sample_again(trial._trial_id)
        if refused < _INSISTS or not self._shows:
            return self._study.ask(fixed_distributions=space)
        found = self._at_random(trial.number, refused).ask(fixed_distributions=space)
        # What the sampler has noted of its own proposals is not true of this one. An empty note is no note.
        for key in self._study._storage.get_trial(trial._trial_id).system_attrs:
            if ":relative_params:" in key:
                self._study._storage.set_trial_system_attr(trial._trial_id, key, "")
        return found

    def _at_random(self, number: int, refused: int) -> Study:
        """Return the study with a sampler that draws at random; the same numbers again for the same proposal."""
        seed = zlib.crc32(f"{self._study.study_name}:{number}:{refused}".encode())
        return Study(self._study.study_name, self._view, sampler=RandomSampler(seed=seed))

    def _refusal(self, trial: Trial) -> Refusal | None:
        return self._sizing.refusal(trial.params) if self._may_refuse else None

    def _to_show(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        if not self._shows or not self._past or _finished(trials) < self._startup:
            return []  # a sampler that still draws at random shall draw as many at random as ever
        state = (self._sizing.model, self._sizing.largest_bytes)
        if self._shown_for != state:
            # Only what is still known not to fit: the model has learned since, or a larger device has come.
            newest = self._past[-_MOST_SHOWN:]
            self._shown = [item for item in newest if self._sizing.refusal(item.params) is not None]
            self._shown_for = state
        return self._shown

    def _imagine(
        self, number: int, params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution], over_gib: float
    ) -> FrozenTrial:
        """Return a refused proposal as a trial. It has the number of the one that came of it: order is kept so."""
        now = datetime.datetime.now()
        return FrozenTrial(
            number=number,
            state=TrialState.RUNNING if self._as_running else TrialState.PRUNED,
            value=None,
            datetime_start=now,
            datetime_complete=None if self._as_running else now,
            params=dict(params),
            distributions=dict(distributions),
            user_attrs={},
            system_attrs={} if self._as_running else {OVER_GIB_ATTR: float(over_gib)},
            intermediate_values={},
            trial_id=-1 - number,
        )


def learns_from_constraints(sampler: BaseSampler) -> bool:
    """Say whether a sampler makes something of how far trials were from their bounds: one that is not Optuna's may."""
    return any(
        isinstance(part, GPSampler)
        or (isinstance(part, BaseSampler) and not type(part).__module__.startswith("optuna."))
        for part in parts_of(sampler)
    )


def _finished(trials: Sequence[FrozenTrial]) -> int:
    return sum(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in trials)
