"""A search with a corner that fits no card, and its unconstrained optimum in that corner: asked by the real asker.

The rule of the research on claims (its section 4): batch 8-512 and width 32-4096, both logarithmic, a learning rate;
what has batch * width over 32768 does not fit. View, proposals, sizing and model are the real ones; the storage is in
memory, and trials are not run: they are told what their parameters come to, four at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from vrampool.coordinator.proposals import Proposals
from vrampool.coordinator.sizing import Sizing
from vrampool.coordinator.space import KnownSpace
from vrampool.memory.learning.fitting import Fitter
from vrampool.messages import AttemptFacts, EndKind, ObjectiveRef, SubmissionSpec, Verdict
from vrampool.storage import ATTEMPT, PLAN, REQUEST, Mark, QueueView, dump_plan
from vrampool.storage.marks import OVER_GIB_ATTR
from vrampool.units import GIB, MIB

BUDGET_BYTES = 16 * GIB
OVERHEAD_BYTES = 600 * MIB
LARGEST_PRODUCT = 32768
AT_ONCE = 4
SPACE = {
    "batch": optuna.distributions.IntDistribution(8, 512, log=True),
    "width": optuna.distributions.IntDistribution(32, 4096, log=True),
    "lr": optuna.distributions.FloatDistribution(1e-5, 1e-1, log=True),
}


def value_of(params: Mapping[str, Any]) -> float:
    """The objective; its optimum (batch 256, width 2048) does not fit."""
    batch, width, rate = math.log2(params["batch"]), math.log2(params["width"]), math.log10(params["lr"])
    return 0.5 * (batch - 8) ** 2 + 0.5 * (width - 11) ** 2 + (rate + 3) ** 2


def need_of(params: Mapping[str, Any]) -> int:
    """Peak of a trial, overhead included."""
    return OVERHEAD_BYTES + int((BUDGET_BYTES - OVERHEAD_BYTES) * params["batch"] * params["width"] / LARGEST_PRODUCT)


class _Storage(InMemoryStorage):
    """Optuna's storage in memory, with the one call of the pool's that the view needs."""

    def create_waiting(self, study_id: int, user_attrs: Mapping[str, Any]) -> FrozenTrial:
        trial = create_trial(state=TrialState.WAITING, user_attrs=dict(user_attrs))
        return self.get_trial(self.create_new_trial(study_id, trial))


@dataclass
class Result:
    """What came of a search."""

    proposed: list[bool] = field(default_factory=list)  #: whether each proposal fits, refused ones too
    ran: list[bool] = field(default_factory=list)  #: whether each trial that was run fits
    refused: int = 0
    wrongly: int = 0  #: refused although they would have fitted
    best: float = math.inf
    states: list[TrialState] = field(default_factory=list)


def search(seed: int, n_trials: int, *, sampler: Any = None, refuse: bool = True) -> Result:
    """Search with a seed; fits are waited for, as real trials take longer than they do."""
    storage: Any = _Storage()
    study_id = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "corner")
    spec = SubmissionSpec("sub", "corner", ObjectiveRef("import", "corner:objective"))
    view = QueueView(storage, mark=Mark(submission="sub"))
    sampler = sampler or optuna.samplers.TPESampler(seed=seed)
    study = optuna.Study("corner", view, sampler=sampler)
    teller = optuna.Study("corner", storage, sampler=sampler)
    fitter = Fitter()
    sizing = Sizing(spec, fitter)
    sizing.largest_bytes, sizing.overhead_bytes = (BUDGET_BYTES if refuse else 0), OVERHEAD_BYTES
    sizing.devices(["GPU 0 (Paper 9000)"])
    proposals = Proposals(study, view, sizing)
    space = KnownSpace()
    result = Result()
    running: list[tuple[int, int, dict[str, Any]]] = []
    asked = 0
    while asked < n_trials or running:
        while asked < n_trials and len(running) < AT_ONCE:
            trials = storage.get_all_trials(study_id, deepcopy=False)
            planned = space.of(study, trials) or dict(SPACE)
            proposal = proposals.ask(planned, trials)
            trial_id, params = proposal.trial._trial_id, dict(proposal.trial.params)
            size = sizing.request(params)
            storage.set_trial_user_attr(trial_id, PLAN, dump_plan(proposal.trial))
            storage.set_trial_user_attr(trial_id, REQUEST, size.to_json(refused=proposal.refused))
            assert storage.set_trial_state_values(trial_id, TrialState.RUNNING)
            for name, distribution in SPACE.items():
                internal = distribution.to_internal_repr(params[name])
                storage.set_trial_param(trial_id, name, internal, distribution)
            proposals.remember(storage.get_trial(trial_id))
            for item in proposal.refused:
                values = {name: value for name, (value, _) in item["plan"].items()}
                fits = need_of(values) <= BUDGET_BYTES
                result.refused += 1
                result.wrongly += fits
                result.proposed.append(fits)
            result.proposed.append(need_of(params) <= BUDGET_BYTES)
            result.ran.append(need_of(params) <= BUDGET_BYTES)
            running.append((trial_id, proposal.trial.number, params))
            asked += 1
        _tell(storage, teller, *running.pop(0), result)
        sizing.learn(storage.get_all_trials(study_id, deepcopy=False)[asked - len(running) - 1])
        sizing.refresh()
        assert fitter.settle(120.0)
    result.states = [trial.state for trial in storage.get_all_trials(study_id, deepcopy=False)]
    fitter.close()
    return result


def _tell(
    storage: Any, study: optuna.Study, trial_id: int, number: int, params: dict[str, Any], result: Result
) -> None:
    need = need_of(params)
    fits = need <= BUDGET_BYTES
    facts = AttemptFacts(
        end=EndKind.COMPLETE if fits else EndKind.INFEASIBLE,
        device_name="Paper 9000",
        lease_bytes=BUDGET_BYTES,
        overhead_bytes=OVERHEAD_BYTES,
        peak_bytes=need if fits else int(0.97 * BUDGET_BYTES),
        asked_bytes=None if fits else int(0.1 * GIB),
        verdict=None if fits else Verdict.CULPRIT,
        over_gib=(need - BUDGET_BYTES) / GIB if fits else 1.0,
    )
    storage.set_trial_user_attr(trial_id, ATTEMPT, facts.to_json())
    # As the desk tells them: what does not fit is pruned without a value, by the raw write.
    if not fits:
        storage.set_trial_system_attr(trial_id, OVER_GIB_ATTR, 1 / GIB)
        assert storage.set_trial_state_values(trial_id, TrialState.PRUNED)
        return
    value = value_of(params)
    study.tell(number, value)
    result.best = min(result.best, value)
