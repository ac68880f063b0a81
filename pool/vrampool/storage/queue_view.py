"""The storage as the coordinator's sampler sees it: trials that wait in our queue look as if they ran."""

from __future__ import annotations

import copy
from collections.abc import Container, Sequence
from statistics import median

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from vrampool.storage.marks import ATTEMPT, MARK, OVER_GIB_ATTR, PLAN, Mark
from vrampool.storage.planned import load_plan
from vrampool.storage.pool_storage import PoolStorage
from vrampool.storage.view import StorageView, copy_trial, died_unborn

_UNFINISHED = (TrialState.RUNNING, TrialState.WAITING)


class QueueView(StorageView):
    """Lets `study.ask()` make trials for the queue. For the coordinator alone.

    - A trial that `ask` makes is born WAITING with the mark, in one write: whoever dies next leaves it findable.
    - Our waiting trials are shown RUNNING with their plan as parameters, and so are running ones that have not asked
      for a parameter yet: samplers then count them (constant liar, grids, duplicates).
    - Reading by state shows no WAITING trials at all, so `ask` never pops one.
    - Parameters that `ask` sets go nowhere: they are only planned (`dump_plan`), the worker stores what is asked for.

    Args:
        base: The pool's storage.
        mark: Written on each trial that is made.
    """

    def __init__(self, base: PoolStorage, mark: Mark) -> None:
        super().__init__(base)
        self._mark = mark
        self._born: FrozenTrial | None = None
        self._again: FrozenTrial | None = None
        self.read: Sequence[FrozenTrial] | None = None  #: the study's trials as read just now; None: read them
        self.memory_constraints = False  #: show the memory of complete trials as a constraint
        self.imagined: Sequence[FrozenTrial] = ()  #: shown beside the study's trials, before the one of their number

    def sample_again(self, trial_id: int) -> None:
        """Have the next `ask` sample this waiting trial anew instead of making another one."""
        self._again = self._base.get_trial(trial_id)
        if self.read is not None:
            self.read = [self._again if trial._trial_id == trial_id else trial for trial in self.read]

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        if template_trial is not None:
            return super().create_new_trial(study_id, template_trial)
        if self._again is not None:
            self._born, self._again = self._again, None
            return self._born._trial_id
        self._born = self._base.create_waiting(study_id, {MARK: self._mark.to_json()})
        if self.read is not None:
            self.read = [*self.read, self._born]
        return self._born._trial_id

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """Do nothing: what `ask` samples is a plan."""

    def get_trial(self, trial_id: int) -> FrozenTrial:
        # `ask` reads each trial right after it has made it; that one read is answered from here.
        born, self._born = self._born, None
        trial = born if born is not None and born._trial_id == trial_id else self._base.get_trial(trial_id)
        if trial.state != TrialState.WAITING or MARK not in trial.user_attrs:
            return trial
        twin = copy_trial(trial)
        twin.state = TrialState.RUNNING
        return twin

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        if states is not None and not any(state in states for state in TrialState if state != TrialState.WAITING):
            return []  # `ask` looking for a trial to pop: there never is one, so nothing needs to be read
        read = self._base.get_all_trials(study_id, deepcopy=False) if self.read is None else self.read
        trials = [_as_seen(trial) if trial.state in _UNFINISHED else trial for trial in read]
        if self.imagined:
            trials = _with(trials, self.imagined)
        if self.memory_constraints:
            trials = with_memory_constraints(trials)
        if states is not None:
            trials = [
                trial
                for trial in trials
                if trial.state in states and trial.state != TrialState.WAITING and not died_unborn(trial)
            ]
        return copy.deepcopy(trials) if deepcopy else trials


def _as_seen(trial: FrozenTrial) -> FrozenTrial:
    """Return one of our unfinished trials as a running one with the parameters it has, or will probably have."""
    if MARK not in trial.user_attrs or (trial.state == TrialState.RUNNING and trial.params):
        return trial
    twin = copy.copy(trial)
    twin.state = TrialState.RUNNING
    if not trial.params:
        twin.params, twin.distributions = load_plan(trial.user_attrs.get(PLAN))
    return twin


def _with(trials: Sequence[FrozenTrial], imagined: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials with imagined ones, each before the trial of its number; the order of numbers is kept."""
    before: dict[int, list[FrozenTrial]] = {}
    for item in imagined:
        before.setdefault(item.number, []).append(item)
    found: list[FrozenTrial] = []
    for trial in trials:
        found += before.pop(trial.number, ())
        found.append(trial)
    return found


def with_memory_constraints(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials with a memory constraint on each complete one, if the memory of any was measured.

    It is how a Gaussian process learns where memory ends. Those that nobody measured get the median: Optuna's
    `GPSampler` refuses to work on trials with different numbers of constraints, and a study may have trials that were
    run by Optuna alone. In the storage none of them has it, for the same reason.
    """
    measured = {
        trial.number: over
        for trial in trials
        if trial.state == TrialState.COMPLETE and (over := _over_gib(trial)) is not None
    }
    if not measured:
        return list(trials)
    middle = float(median(measured.values()))
    found = []
    for trial in trials:
        if trial.state == TrialState.COMPLETE:
            trial, seen = copy.copy(trial), trial
            trial.system_attrs = {**seen.system_attrs, OVER_GIB_ATTR: measured.get(seen.number, middle)}
        found.append(trial)
    return found


def _over_gib(trial: FrozenTrial) -> float | None:
    """Return by how much a trial was over the largest budget; raw, for this is done for every trial at each `ask`."""
    facts = trial.user_attrs.get(ATTEMPT)
    over = facts.get("over_gib") if isinstance(facts, dict) else None
    return float(over) if isinstance(over, (int, float)) else None
