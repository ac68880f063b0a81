"""What an objective may return, raise, report and store: each is told as what it is, and costs its own trial alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from optuna.trial import TrialState
from rq.registry import FailedJobRegistry
from support.pools import LivePool, check_invariants, facts_of, only

from vrampool.messages import EndKind
from vrampool.storage import mark_of

OBJECTIVES = Path(__file__).with_name("objectives.py")
COMPLETE, FAIL, PRUNED = TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED


def attempts(handle) -> list[int]:
    return [mark.attempt for trial in handle.trials if (mark := mark_of(trial)) is not None]


@pytest.mark.parametrize("bundled", [False, True], ids=["imported", "bundled"])
def test_an_exception_that_cannot_be_unpickled_is_told_like_any_other(pool: LivePool, bundled):
    """A15."""
    objective = f"{OBJECTIVES}:raise_unloadable"
    if bundled:

        class Unloadable(Exception):
            def __init__(self, first, second):
                super().__init__("two args")

        def objective(trial):
            raise Unloadable(1, 2)

    trial = only(pool.run(objective))
    assert trial.state == FAIL
    facts = facts_of(trial)
    assert facts.end == EndKind.FAILED
    assert "Unloadable" in facts.text and "two args" in facts.text
    assert "raise Unloadable(1, 2)" in facts.traceback or "in objective" in facts.traceback
    check_invariants(pool)


def test_wrong_values_fail_with_their_type_and_right_ones_count_as_optuna_counts_them(pool: LivePool):
    """A18: none, nan, text, a number as text, a pair; inf, true, a NumPy number, a list of one."""
    handle = pool.run(f"{OBJECTIVES}:return_odd_values", 9, max_concurrent_trials=4)
    found = handle.trials
    assert [trial.state for trial in found] == [FAIL] * 5 + [COMPLETE] * 4
    assert [trial.value for trial in found[5:]] == [math.inf, 1.0, 0.5, 1.0]
    kinds = ["NoneType", "float", "str", "str", "tuple"]
    assert [kind in facts_of(trial).text for kind, trial in zip(kinds, found, strict=False)] == [True] * 5
    assert attempts(handle) == [1] * 9
    check_invariants(pool)


def test_values_come_back_bit_for_bit(pool: LivePool):
    """A18."""
    handle = pool.run(f"{OBJECTIVES}:return_exact_values", 4)
    values = [trial.value for trial in handle.trials]
    assert values == [0.1 + 0.2, 5e-324, -math.inf, 1.7976931348623157e308]
    check_invariants(pool)


def test_pruned_trials_are_pruned_and_nothing_else(pool: LivePool):
    """A19: with and without a report, after NaN, by a class of the user's own."""
    handle = pool.run(f"{OBJECTIVES}:prune", 4)
    found = handle.trials
    assert [trial.state for trial in found] == [PRUNED, PRUNED, COMPLETE, PRUNED]
    assert [trial.value for trial in found] == [0.7, None, 0.4, None]
    reports = found[2].intermediate_values
    assert math.isnan(reports[0]) and reports[1] == 0.4
    assert attempts(handle) == [1] * 4
    assert handle.failures() == {}
    failed = FailedJobRegistry(pool.pool.settings.pool, connection=pool.pool.connection)
    assert not [job for job in failed.get_job_ids() if job.startswith(handle.id)]
    check_invariants(pool)


def test_attributes_of_odd_types_are_refused_where_they_are_set(pool: LivePool):
    """A20: the error has key and type, and the objective may catch it."""
    handle = pool.run(f"{OBJECTIVES}:set_odd_attributes", 5)
    found = handle.trials
    assert [trial.state for trial in found] == [FAIL] + [COMPLETE] * 4
    assert "'acc'" in facts_of(found[0]).text and "float32" in facts_of(found[0]).text
    for trial, kind in zip(found[1:4], ["int64", "set", "ndarray"], strict=True):
        assert "'acc'" in trial.user_attrs["told"] and kind in trial.user_attrs["told"]
        assert trial.value == 0.25
    assert found[4].user_attrs["acc"] == 0.5
    check_invariants(pool)


def test_choices_that_changed_fail_with_one_common_reason(pool: LivePool):
    """A21: the four new trials fail alike, the old one stays as it was."""

    def two(trial):
        return float(trial.suggest_categorical("bs", [64, 128]))

    def three(trial):
        return float(trial.suggest_categorical("bs", [64, 128, 256]))

    first = pool.run(two, 1, study_name="choices")
    before = only(first)
    second = pool.run(three, 4, study_name="choices")
    assert [trial.state for trial in second.trials] == [FAIL] * 4
    assert attempts(second) == [1] * 4
    ((reason, count),) = second.failures().items()
    assert count == 4
    assert "dynamic value space" in reason and "'bs'" in reason
    assert only(first) == before
    check_invariants(pool)


def test_leaving_by_other_ways_than_an_exception_fails_the_trial_alone(pool: LivePool):
    """A22: `sys.exit` with and without a code, KeyboardInterrupt, a BaseException of one's own."""
    handle = pool.run(f"{OBJECTIVES}:leave", 4)
    assert [trial.state for trial in handle.trials] == [FAIL] * 4
    facts = [facts_of(trial) for trial in handle.trials]
    assert [item.end for item in facts] == [EndKind.FAILED] * 4
    assert "SystemExit: exit code 3" in facts[0].text and facts[0].exit_code == 3
    assert "SystemExit: exit code 0" in facts[1].text
    assert "KeyboardInterrupt" in facts[2].text
    assert "Odd: x" in facts[3].text
    assert attempts(handle) == [1] * 4
    check_invariants(pool)


def test_a_study_whose_first_trials_all_fail_alike_stops(pool: LivePool):
    """Going on would burn the night; what was created by then is told."""
    handle = pool.run(f"{OBJECTIVES}:raise_value_error", 40)
    assert str(handle.state) == "failed"
    assert "first 5 trials all failed alike" in handle.reason
    assert "the same for all" in handle.reason
    assert 5 <= len(handle.trials) < 20
    check_invariants(pool)


def test_several_values_are_told_to_a_study_with_several_objectives(pool: LivePool):
    """And one value too few fails there."""

    def objective(trial):
        return (1.0, 2.0) if trial.number == 0 else 1.0

    handle = pool.run(objective, 2, directions=["minimize", "maximize"])
    assert [trial.state for trial in handle.trials] == [COMPLETE, FAIL]
    assert handle.trials[0].values == [1.0, 2.0]
    check_invariants(pool)
