"""A worker sees its own writes at once, others at most a second old, and pays for neither at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.pruners import MedianPruner
from optuna.samplers import RandomSampler
from optuna.trial import Trial, TrialState
from support.two_sides import Statements, TwoSides, two_sides

from vrampool.storage import claim, fail_lost, prune_infeasible, record_facts


@pytest.fixture
def sides(ready_url: str) -> Iterator[TwoSides]:
    opened = two_sides(ready_url, lambda seed: RandomSampler(seed=seed), workers=2)
    yield opened
    opened.close()


def test_own_writes_are_seen_at_once(sides: TwoSides) -> None:
    worker = sides.workers[0]
    trial = worker.open(sides.ask()._trial_id)
    worker.study.get_trials()  # the last reading is of this moment
    x = trial.suggest_float("x", 0, 1)
    trial.report(0.5, 3)
    trial.set_user_attr("pair", (1, 2))
    trial.set_constraint("c", 1.5)
    record_facts(worker.view, trial._trial_id, {"facts": {"end": "complete"}})

    for seen in (worker.study.get_trials()[0], worker.view.get_trial(trial._trial_id)):
        assert seen.params == {"x": x} and seen.distributions == {"x": FloatDistribution(0, 1)}
        assert seen.intermediate_values == {3: 0.5}
        assert seen.user_attrs["pair"] == [1, 2]
        assert seen.user_attrs["facts"] == {"end": "complete"}
        assert seen.constraints == {"c": 1.5}
        assert seen == sides.storage.get_trial(trial._trial_id)

    worker.tell(trial, 0.25)
    assert worker.study.get_trials(states=(TrialState.COMPLETE,))[0].value == 0.25
    assert worker.study.get_trials()[0] == sides.trials[0]


def test_writes_of_others_are_seen_within_a_second_not_at_once(sides: TwoSides) -> None:
    one, other = sides.workers
    other_trial = other.open(sides.ask()._trial_id)
    one.open(sides.ask()._trial_id)
    assert one.study.get_trials()[0].intermediate_values == {}

    other_trial.report(0.5, 0)
    sides.clock.now_s += 0.99
    assert one.study.get_trials()[0].intermediate_values == {}
    sides.clock.now_s += 0.02
    assert one.study.get_trials()[0].intermediate_values == {0: 0.5}


def test_samplers_may_read_others_afresh(sides: TwoSides) -> None:
    one, other = sides.workers
    assert one.study.get_trials() == []
    other.run(sides.ask()._trial_id, lambda trial: 1.0)
    assert one.study.get_trials() == []
    with one.view.fresh():
        assert [trial.value for trial in one.study.get_trials()] == [1.0]


def test_pruning_at_every_step_costs_no_statement(sides: TwoSides) -> None:
    def objective(trial: Trial) -> float:
        trial.report(1.0, 0)
        return trial.suggest_float("x", 0, 1)

    for _ in range(6):
        sides.workers[1].run(sides.ask()._trial_id, objective)
    worker = sides.workers[0]
    worker.study.pruner = MedianPruner(n_startup_trials=2)
    trial = worker.open(sides.ask()._trial_id)
    trial.report(5.0, 0)
    assert trial.should_prune()
    statements = Statements(worker.storage)
    assert all(trial.should_prune() for _ in range(20))
    assert statements.texts == []


def test_a_tell_is_one_transaction_of_two_statements(sides: TwoSides) -> None:
    worker = sides.workers[0]
    trial = worker.open(sides.ask()._trial_id)
    statements = Statements(worker.storage)
    told = worker.study.tell(trial.number, 1.0)
    assert statements.commits == 1
    assert [text.split()[0] for text in statements.texts if not text.startswith("BEGIN")] == ["UPDATE", "INSERT"]
    stored = sides.trials[0]
    assert (told.state, told.value, told.datetime_start) == (stored.state, stored.value, stored.datetime_start)
    assert told.datetime_complete is not None and stored.datetime_complete is not None
    assert abs((told.datetime_complete - stored.datetime_complete).total_seconds()) < 5


def test_a_trial_that_was_failed_meanwhile_takes_no_write_of_any_kind(sides: TwoSides) -> None:
    writes: list[Callable[[Trial], object]] = [
        lambda trial: trial.report(1.0, 0),
        lambda trial: trial.suggest_float("x", 0, 1),
        lambda trial: trial.set_user_attr("k", 1),
        lambda trial: trial.set_constraint("c", 1.0),
        lambda trial: sides.workers[0].study.tell(trial.number, 1.0),
    ]
    for write in writes:
        trial = sides.workers[0].open(sides.ask()._trial_id)
        assert fail_lost(sides.storage, trial._trial_id, "thought dead")
        with pytest.raises(UpdateFinishedTrialError):
            write(trial)
        assert sides.workers[0].view.get_trial(trial._trial_id).state == TrialState.FAIL
        assert sides.workers[0].study.trials[trial.number].state == TrialState.FAIL
    assert all(trial.value is None and not trial.params for trial in sides.trials)


def test_a_trial_that_was_failed_meanwhile_is_seen_at_the_next_reading(sides: TwoSides) -> None:
    worker = sides.workers[0]
    trial = worker.open(sides.ask()._trial_id)
    assert fail_lost(sides.storage, trial._trial_id, "thought dead")
    assert worker.view.get_trial(trial._trial_id).state == TrialState.RUNNING
    with worker.view.fresh():
        worker.study.get_trials()
    assert worker.view.get_trial(trial._trial_id).state == TrialState.FAIL


def test_an_end_past_optuna_goes_through_the_view(sides: TwoSides) -> None:
    worker = sides.workers[0]
    trial = worker.open(sides.ask()._trial_id)
    trial.suggest_float("x", 0, 1)
    assert prune_infeasible(worker.view, trial._trial_id, 0.5)
    assert worker.view.get_trial(trial._trial_id).state == TrialState.PRUNED
    assert [seen.state for seen in worker.study.get_trials(states=(TrialState.PRUNED,))] == [TrialState.PRUNED]


def test_the_numbers_stay_in_order_when_own_trials_are_newer_than_the_reading(sides: TwoSides) -> None:
    one, other = sides.workers
    one.study.get_trials()
    asked = [sides.ask()._trial_id for _ in range(3)]
    other.open(asked[1])
    one.open(asked[2])
    one.open(asked[0])
    assert [trial.number for trial in one.study.get_trials()] == [0, 2]
    with one.view.fresh():
        assert [trial.number for trial in one.study.get_trials()] == [0, 1, 2]


def test_what_a_reader_does_to_a_list_or_a_copy_hurts_nobody(sides: TwoSides) -> None:
    worker = sides.workers[0]
    worker.run(sides.ask()._trial_id, lambda trial: trial.suggest_float("x", 0, 1))
    own = worker.open(sides.ask()._trial_id)
    worker.view.get_all_trials(sides.study_id, deepcopy=False, states=(TrialState.COMPLETE,)).clear()
    worker.view.get_all_trials(sides.study_id, deepcopy=False).clear()
    worker.study.get_trials()[1].user_attrs["k"] = 1
    worker.view.get_trial(own._trial_id).params["k"] = 1
    assert [len(trial.params) for trial in worker.study.get_trials(deepcopy=False)] == [1, 0]
    assert "k" not in worker.study.get_trials()[1].user_attrs


def test_several_studies_share_one_view(sides: TwoSides) -> None:
    worker = sides.workers[0]
    other = optuna.create_study(study_name="other", storage=worker.view)
    own = worker.open(sides.ask()._trial_id)
    assert other.trials == [] and len(worker.study.trials) == 1
    other.add_trial(optuna.create_trial(value=1.0))
    assert len(other.trials) == 1
    optuna.delete_study(study_name="s", storage=worker.view)
    with pytest.raises(KeyError):
        worker.view.get_trial(own._trial_id)


def test_a_claim_through_the_view_is_a_claim(sides: TwoSides) -> None:
    asked = sides.ask()
    assert claim(sides.workers[0].view, asked._trial_id, "w0")
    assert not claim(sides.workers[1].view, asked._trial_id, "w1")
