"""The space that is planned: Optuna's intersection, though each finished trial is looked at once."""

from __future__ import annotations

import random

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import TrialState, create_trial

from vrampool.coordinator.space import KnownSpace

STATES = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL]


def ended(rng: random.Random) -> optuna.trial.FrozenTrial:
    """Return a trial that ended, of an objective whose space changes now and then."""
    width = IntDistribution(1, 8 if rng.random() < 0.9 else 16)
    distributions = {"x": FloatDistribution(0, 1), "width": width}
    if rng.random() < 0.9:
        distributions["y"] = FloatDistribution(0, 1)
    state = rng.choices(STATES, [6, 2, 1])[0]
    params = dict.fromkeys(distributions, 1)
    return create_trial(
        state=state, value=None if state == TrialState.FAIL else 1.0, params=params, distributions=distributions
    )


@pytest.mark.parametrize("seed", range(30))
def test_it_is_the_same_at_every_moment(seed):
    rng = random.Random(seed)
    study, known, theirs = optuna.create_study(), KnownSpace(), IntersectionSearchSpace(include_pruned=True)
    storage, running = study._storage, []
    for _ in range(25):
        if running and rng.random() < 0.5:
            trial = running.pop(rng.randrange(len(running)))
            for name, distribution in ended(rng).distributions.items():
                trial._suggest(name, distribution)
            state = rng.choices(STATES, [6, 2, 1])[0]
            storage.set_trial_state_values(trial._trial_id, state, [1.0] if state == TrialState.COMPLETE else None)
        elif rng.random() < 0.3:
            study.add_trial(ended(rng))
        else:
            running.append(study.ask())
        trials = storage.get_all_trials(study._study_id, deepcopy=False)
        if any(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in trials):
            assert dict(sorted(known.of(study, trials).items())) == theirs.calculate(study)
