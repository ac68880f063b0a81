"""What an objective may expect of its trial, as checks that are run on each class of trial.

They follow the subjects of Optuna's own tests of its trials. `trial_running` runs them. All checks of one setup share a
trial, so each uses names of its own.
"""

from __future__ import annotations

import datetime
import math
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

#: Parameters that are given: enqueued for Optuna's trial and the proxy, and what `FixedTrial` is made of.
GIVEN: dict[str, Any] = {
    "float": 0.2,
    "float_log": 0.01,
    "float_step": 0.75,
    "uniform": 0.3,
    "loguniform": 0.99,
    "discrete": 0.9,
    "int": 3,
    "int_log": 8,
    "int_step": 5,
    "text": "baz",
    "none": None,
    "true": True,
    "number": 2.5,
    "twice": 0.5,
    "twice_int": 7,
    "twice_kind": "a",
    "equal": 0.5,
    "equal_int": 1,
    "d_float": 1.0,
    "d_log": 0.5,
    "d_step": 2.0,
    "d_int": 4,
    "d_kind": "b",
    "outside": 1.0,
    "outside_too": 1.0,
}

#: Why a class of trial is excused from a check.
FIXED_REPORTS = "FixedTrial takes and forgets reports, and never prunes"
FIXED_STUDY = "FixedTrial has no study"
FIXED_ALL = "FixedTrial has no sampler, so every name must be given"
SEVERAL = "a FixedTrial knows nothing of objectives"
#: And the proxy. Each of these stands in docs/parity.md.
WARNED_ELSEWHERE = "the worker notices it, and its log has the warning"
NOT_HERE = "the study and its storage are the worker's"


@dataclass(frozen=True)
class Check:
    """One subject. `setup` is the study it needs."""

    name: str
    run: Callable[[Any], None]
    setup: str = "given"
    excused: dict[str, str] = field(default_factory=dict)


CHECKS: list[Check] = []


def check(setup: str = "given", **excused: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def add(function: Callable[[Any], None]) -> Callable[[Any], None]:
        CHECKS.append(Check(function.__name__, function, setup, excused))
        return function

    return add


@check()
def suggest_float(trial):
    assert trial.suggest_float("float", 0.0, 1.0) == 0.2
    assert trial.suggest_float("float_log", 1e-5, 1.0, log=True) == 0.01
    assert trial.suggest_float("float_step", 0, 1, step=0.25) == 0.75
    with pytest.raises(ValueError):
        trial.suggest_float("wrong_float", 0.1, 1.0, step=10, log=True)


@check()
def suggest_old_names(trial):
    with pytest.warns(FutureWarning):
        assert trial.suggest_uniform("uniform", 0.0, 1.0) == 0.3
    with pytest.warns(FutureWarning):
        assert trial.suggest_loguniform("loguniform", 0.1, 1.0) == 0.99
    with pytest.warns(FutureWarning):
        assert trial.suggest_discrete_uniform("discrete", 0.0, 1.0, 0.1) == 0.9


@check()
def suggest_int(trial):
    assert trial.suggest_int("int", 1, 10) == 3
    assert trial.suggest_int("int_log", 1, 64, log=True) == 8
    value = trial.suggest_int("int_step", 1, 9, step=2)
    assert value == 5 and isinstance(value, int)
    with pytest.raises(ValueError):
        trial.suggest_int("wrong_int", 1, 10, step=2, log=True)


@check()
def suggest_categorical(trial):
    assert trial.suggest_categorical("text", ("foo", "bar", "baz")) == "baz"
    assert trial.suggest_categorical("none", [1, None]) is None
    assert trial.suggest_categorical("true", [False, True]) is True
    assert trial.suggest_categorical("number", [1.5, 2.5]) == 2.5
    with pytest.raises(ValueError):
        trial.suggest_categorical("text", ["foo", "bar"])
    with pytest.raises(ValueError):
        trial.suggest_categorical("empty", [])


@check(FixedTrial=FIXED_ALL)
def suggest_what_is_not_given(trial):
    for _ in range(2):
        assert 0 <= trial.suggest_float("free", 0, 1) <= 1
    assert trial.suggest_float("free", 0, 1) == trial.params["free"]
    assert trial.suggest_categorical("free_kind", ["x", "y"]) in ("x", "y")


@check()
def suggest_unknown_given(trial):
    """A name that is not given: a FixedTrial refuses it, the others sample it."""
    if isinstance(trial, optuna.trial.FixedTrial):
        with pytest.raises(ValueError):
            trial.suggest_float("unknown", 0, 1)
    else:
        assert 0 <= trial.suggest_float("unknown", 0, 1) <= 1


@check()
def check_distribution(trial):
    assert trial.suggest_float("twice", 0, 1) == trial.suggest_float("twice", 0, 1) == 0.5
    with pytest.raises(ValueError):
        trial.suggest_int("twice", 0, 1)
    assert trial.suggest_int("twice_int", 0, 10) == 7
    with pytest.raises(ValueError):
        trial.suggest_float("twice_int", 0, 10)
    assert trial.suggest_categorical("twice_kind", ["a", "b"]) == "a"
    with pytest.raises(ValueError):
        trial.suggest_categorical("twice_kind", ["b", "c"])


@check(FixedTrial="a FixedTrial gives its value without a word about the range")
def check_distribution_range(trial):
    with pytest.warns(RuntimeWarning, match="Inconsistent parameter values"):
        assert trial.suggest_float("twice", 0, 3) == 0.5
    with pytest.warns(RuntimeWarning):
        assert trial.suggest_int("twice_int", 0, 20, step=2) == 7


@check()
def suggest_low_equals_high(trial):
    assert trial.suggest_float("equal", 0.5, 0.5) == trial.suggest_float("equal", 0.5, 0.5) == 0.5
    assert trial.suggest_int("equal_int", 1, 1) == 1


@check(FixedTrial=FIXED_ALL)
def suggest_range_that_is_no_multiple(trial):
    for index, (low, high, step, top) in enumerate(
        [(0.0, 10.0, 3.0, 9.0), (1.0, 11.0, 3.0, 10.0), (0.0, 3.45, 0.1, 3.4), (0, 10, 3, 9), (64, 1312, 160, 1184)]
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(step, int):
                value = trial.suggest_int(f"range{index}", low, high, step=step)
            else:
                value = trial.suggest_float(f"range{index}", low, high, step=step)
        steps = (value - low) / step
        assert low <= value <= top + 1e-9 and abs(steps - round(steps)) < 1e-6


@check()
def a_given_value_outside_its_range_is_used(trial):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert trial.suggest_float("outside", 10, 100) == 1.0


@check(ProxyTrial=WARNED_ELSEWHERE)
def a_given_value_outside_its_range_is_warned_of(trial):
    with pytest.warns(UserWarning, match="out of"):
        trial.suggest_float("outside_too", 10, 100)


@check(FixedTrial=FIXED_ALL, ProxyTrial=WARNED_ELSEWHERE)
def a_range_that_is_no_multiple_is_warned_of(trial):
    with pytest.warns(UserWarning, match="not divisible"):
        trial.suggest_float("range", 0, 10, step=3)


@check(FixedTrial=FIXED_ALL, ProxyTrial=WARNED_ELSEWHERE)
def choices_that_are_no_plain_values_are_warned_of(trial):
    with pytest.warns(UserWarning, match="which is of type"):
        trial.suggest_categorical("odd", [[1, 2], [3]])


@check(FixedTrial=FIXED_STUDY, ProxyTrial=NOT_HERE)
def storage(trial):
    assert trial.storage.get_trial(trial._trial_id).number == trial.number


@check(FixedTrial=FIXED_ALL, ProxyTrial="it is of use only where its channel is")
def it_can_be_pickled(trial):
    assert pickle.loads(pickle.dumps(trial)).number == trial.number


@check(FixedTrial=FIXED_ALL, ProxyTrial="a sampler's own note")
def relative_search_space(trial):
    assert trial.relative_search_space is None or isinstance(trial.relative_search_space, dict)


@check()
def suggest_invalid_step(trial):
    for step in (0, -1):
        with pytest.raises(ValueError):
            trial.suggest_float("bad_step", 10, 20, step=step)
        with pytest.raises(ValueError):
            trial.suggest_int("bad_step_int", 10, 20, step=step)


@check()
def suggest_invalid_range(trial):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in (
            lambda: trial.suggest_int("bad_log", 0.5, 10, log=True),
            lambda: trial.suggest_float("bad_log", -1, 10, log=True),
            lambda: trial.suggest_float("bad", 1, 0),
            lambda: trial.suggest_int("bad", 1, 0),
        ):
            with pytest.raises(ValueError):
                call()


@check(FixedTrial=FIXED_ALL)
def suggest_numpys_numbers(trial):
    assert 0 <= trial.suggest_float("np", np.float32(0), np.float64(1)) <= 1
    value = trial.suggest_int("np_int", np.int64(1), np.int32(3))
    assert type(value) is int and 1 <= value <= 3


@check()
def distributions(trial):
    trial.suggest_float("d_float", 0, 10)
    trial.suggest_float("d_log", 0.1, 10, log=True)
    trial.suggest_float("d_step", 0, 10, step=1)
    trial.suggest_int("d_int", 0, 10)
    trial.suggest_categorical("d_kind", ["a", "b"])
    expected = {
        "d_float": FloatDistribution(0, 10),
        "d_log": FloatDistribution(0.1, 10, log=True),
        "d_step": FloatDistribution(0, 10, step=1),
        "d_int": IntDistribution(0, 10),
        "d_kind": CategoricalDistribution(("a", "b")),
    }
    assert {name: trial.distributions[name] for name in expected} == expected
    assert {name: trial.params[name] for name in expected} == {name: GIVEN[name] for name in expected}


@check()
def report(trial):
    trial.report(1.23, 1)
    trial.report(math.nan, 2)
    trial.report(1, 5)
    trial.report(np.array([1], dtype=np.float32)[0], np.int64(6))
    assert trial.should_prune() is False


@check(FixedTrial=FIXED_REPORTS)
def report_what_is_no_number(trial):
    trial.report("1.23", 10)
    trial.report("inf", 11)
    for value, step in ((None, 12), ("foo", 12), ([1, 2], 12), ("foo", -1), (1.0, "one"), (1.0, None)):
        with pytest.raises(TypeError):
            trial.report(value, step)
    with pytest.raises(ValueError):
        trial.report(1.23, -1)


@check(FixedTrial=FIXED_REPORTS)
def report_warning(trial):
    trial.report(1.23, 20)
    with pytest.warns(UserWarning, match="already reported"):
        trial.report(1, 20)


@check()
def set_user_attrs(trial):
    trial.set_user_attr("data", "MNIST")
    trial.set_user_attr("data", {"name": ["MNIST", None]})
    assert trial.user_attrs["data"] == {"name": ["MNIST", None]}
    trial.user_attrs["data"] = "changed"
    assert trial.user_attrs["data"] != "changed" or isinstance(trial, optuna.trial.FixedTrial)


@check(FixedTrial="a FixedTrial keeps constraints as it keeps attributes, unchecked")
def set_constraint(trial):
    trial.set_constraint("size", np.float32(2.5))
    assert trial.constraints == {"size": 2.5}
    with pytest.warns(UserWarning, match="already set"):
        trial.set_constraint("size", 3.0)
    with pytest.raises(ValueError):
        trial.set_constraint("bad", math.nan)
    with pytest.raises(TypeError):
        trial.set_constraint("bad", "big")
    assert trial.constraints == {"size": 2.5}


@check()
def datetime_start(trial):
    assert isinstance(trial.datetime_start, datetime.datetime)


@check()
def number(trial):
    assert trial.number == 0 and isinstance(trial.number, int)


@check()
def kind(trial):
    assert isinstance(trial, optuna.trial.BaseTrial)


@check(FixedTrial=FIXED_STUDY)
def study(trial):
    assert isinstance(trial, optuna.Trial)
    assert trial.study.direction == optuna.study.StudyDirection.MINIMIZE
    assert [other.number for other in trial.study.trials] == [0]
    assert isinstance(trial.study.sampler, optuna.samplers.RandomSampler)
    with pytest.raises(ValueError):
        print(trial.study.best_trial)


@check("pruner", FixedTrial=FIXED_REPORTS)
def should_prune(trial):
    trial.report(1, 1)
    assert trial.should_prune() is True


@check("several", FixedTrial=SEVERAL)
def several_objectives(trial):
    assert len(trial.study.directions) == 2
    with pytest.raises(NotImplementedError):
        trial.report(1.0, 0)
    with pytest.raises(NotImplementedError):
        trial.should_prune()
    trial.suggest_float("p", 0, 1)


class Relative(optuna.samplers.BaseSampler):
    """Proposes x, y and z together, and 5.0 for whatever else is asked for."""

    def infer_relative_search_space(self, study, trial):
        return {name: FloatDistribution(5, 6) for name in ("x", "x2", "y", "y2")}

    def sample_relative(self, study, trial, search_space):
        return dict.fromkeys((*search_space, "z"), 5.5)

    def sample_independent(self, study, trial, param_name, param_distribution):
        return 5.0


@check("relative", FixedTrial=FIXED_ALL)
def relative_parameters(trial):
    assert trial.suggest_float("x", 0, 100) == 5.5
    assert trial.suggest_float("w", 0, 100) == 5.0, "not of the proposal"
    assert trial.suggest_float("x2", 0, 5) == 5.0, "the proposal is outside the range"
    with pytest.raises(ValueError):
        trial.suggest_int("y", 1, 100)
    with pytest.raises(ValueError):
        trial.suggest_int("y2", 1, 100, log=True)
    with pytest.raises(ValueError):
        trial.suggest_float("z", 0, 10)
