"""The trial as the objective sees it. The real one lives in the worker; this one asks it, and knows Optuna's manners.

It imports Optuna only where a caller must get one of Optuna's own objects (`distributions`, a `FrozenTrial`), and is a
virtual subclass of `optuna.Trial` once the objective has imported Optuna itself: integrations and type checks ask.
"""

from __future__ import annotations

import builtins
import copy
import json
import math
import operator
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

from vrampool_worker.child.import_hooks import after_import
from vrampool_worker.child.proxy_study import ProxyStudy

if TYPE_CHECKING:
    import datetime

    from optuna.distributions import BaseDistribution

Call = Callable[..., Any]

#: Our own words on trials begin so; an objective may read but not write them.
RESERVED = "vrampool:"


class ProxyTrial:
    """Stands in for `optuna.Trial`; see there for what each member means.

    Args:
        call: Makes a call of the real trial: ``call(name, **arguments)``. Arguments and result are JSON.
        snapshot: The real trial as `TrialServer.snapshot` describes it.
        hold: Keeps a request to stop back for as long as a block lasts.

    Attributes:
        checkpoint_place: For `vrampool.checkpoint`: the root trial's folder and the attempt's number.
        hold_stop: For it too.
    """

    def __init__(
        self,
        call: Call,
        snapshot: dict[str, Any],
        hold: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.checkpoint_place: dict[str, Any] | None = snapshot.get("checkpoints")
        self.hold_stop = hold
        self._call = call
        self._number = int(snapshot["number"])
        self._trial_id = int(snapshot.get("trial_id", -1))
        self._params: dict[str, Any] = dict(snapshot.get("params", {}))
        self._stored: dict[str, str] = dict(snapshot.get("distributions", {}))
        self._asked: dict[str, tuple[Any, ...]] = {}
        self._user_attrs: dict[str, Any] = dict(snapshot.get("user_attrs", {}))
        self._constraints: dict[str, float] = dict(snapshot.get("constraints", {}))
        self._reported: set[int] = set(snapshot.get("steps", ()))
        self._datetime_start: str | None = snapshot.get("datetime_start")
        self.study = ProxyStudy(call, snapshot.get("study", {}))

    def __repr__(self) -> str:
        return f"<trial {self._number} of study {self.study.study_name!r}, run by vrampool>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a trial cannot be pickled: it can be used only in the process that runs it")

    # ---- suggest -------------------------------------------------------------------------------------

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        asked_step = None if step is None else _plain(step)
        asked = {"low": _plain(low), "high": _plain(high), "step": asked_step, "log": bool(log)}
        return float(self._suggest("suggest_float", name, asked))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        asked = {"low": _plain(low), "high": _plain(high), "step": _plain(step), "log": bool(log)}
        return int(self._suggest("suggest_int", name, asked))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        choices = tuple(choices)
        try:
            asked = json.loads(json.dumps(choices))
        except (TypeError, ValueError) as error:
            raise TypeError(f"choices of parameter {name!r} must be None, bool, int, float or str: {error}") from None
        key = ("suggest_categorical", json.dumps(asked))
        if self._asked.get(name) == key:
            return self._params[name]
        # An index comes back, so that the objective gets its own object: a tuple stays one, an enum's member too.
        chosen = choices[self._ask("suggest_categorical", name, {"choices": asked})]
        self._asked.setdefault(name, key)
        self._params.setdefault(name, chosen)
        return chosen

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        _deprecated("suggest_uniform", "")
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        _deprecated("suggest_loguniform", "(..., log=True)")
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        _deprecated("suggest_discrete_uniform", "(..., step=...)")
        return self.suggest_float(name, low, high, step=q)

    def _suggest(self, method: str, name: str, asked: dict[str, Any]) -> Any:
        key = (method, *asked.values())
        if self._asked.get(name) == key:
            return self._params[name]  # as Optuna: a name has one value in a trial
        value = self._ask(method, name, asked)
        self._asked.setdefault(name, key)
        self._params.setdefault(name, value)
        return value

    def _ask(self, method: str, name: str, asked: dict[str, Any]) -> Any:
        answer = self._call(method, name=name, **asked)
        for category, text in answer["warnings"]:
            kind = getattr(builtins, category, UserWarning)
            warnings.warn(text, kind if issubclass(kind, Warning) else UserWarning, stacklevel=4)
        return answer["value"]

    # ---- report and prune ----------------------------------------------------------------------------

    def report(self, value: float, step: int) -> None:
        self._single_objective("report")
        number, at = _as_float(value, "value"), _as_int(step, "step")
        if at < 0:
            raise ValueError(f"`step={at!r}` must be non-negative.")
        if at in self._reported:
            warnings.warn(
                f"The reported value is ignored because this `step={at!r}` is already reported.", stacklevel=2
            )
            return
        self._call("report", value=number, step=at)
        self._reported.add(at)

    def should_prune(self) -> bool:
        self._single_objective("should_prune")
        return bool(self._call("should_prune"))

    def _single_objective(self, method: str) -> None:
        if self.study.n_objectives > 1:
            raise NotImplementedError(f"Trial.{method} is not supported for multi-objective optimization.")

    # ---- attributes and constraints ------------------------------------------------------------------

    def set_user_attr(self, key: str, value: Any) -> None:
        _check_key(key)
        try:
            encoded = json.loads(json.dumps(value))
        except (TypeError, ValueError) as error:
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise TypeError(f"user attribute {key!r} of type {kind} cannot be stored: {error}") from None
        self._call("set_user_attr", key=key, value=encoded)
        self._user_attrs[key] = value

    def set_constraint(self, key: str, value: float) -> None:
        number = _as_float(value, "value")
        if math.isnan(number):
            raise ValueError(f"Attempted to set a constraint for {key!r}, but NaN is not allowed.")
        _check_key(key)
        if key in self._constraints:
            warnings.warn(
                f"The constraint value is ignored because this constraint `key={key!r}` is already set.", stacklevel=2
            )
            return
        self._call("set_constraint", key=key, value=number)
        self._constraints[key] = number

    # ---- facts ---------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        return self._number

    @property
    def params(self) -> dict[str, Any]:
        return copy.deepcopy(self._params)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        from optuna import distributions as kinds

        found = {name: kinds.json_to_distribution(text) for name, text in self._stored.items()}
        for name, (method, *asked) in self._asked.items():
            if name in found:
                continue
            if method == "suggest_categorical":
                found[name] = kinds.CategoricalDistribution(json.loads(asked[0]))
                continue
            low, high, step, log = asked
            make = kinds.FloatDistribution if method == "suggest_float" else kinds.IntDistribution
            found[name] = make(low, high, log=log, step=step)
        return found

    @property
    def user_attrs(self) -> dict[str, Any]:
        return copy.deepcopy(self._user_attrs)

    @property
    def constraints(self) -> dict[str, float]:
        return dict(self._constraints)

    @property
    def datetime_start(self) -> datetime.datetime | None:
        import datetime

        return None if self._datetime_start is None else datetime.datetime.fromisoformat(self._datetime_start)

    @property
    def relative_params(self) -> dict[str, Any]:
        return dict(self._call("relative_params"))

    @property
    def storage(self) -> NoReturn:
        raise AttributeError("this trial has no storage: it runs in a pool, whose worker alone speaks to the database")


def _deprecated(name: str, instead: str) -> None:
    warnings.warn(
        f"{name} has been deprecated in v3.0.0. This feature will be removed in v6.0.0. See "
        f"https://github.com/optuna/optuna/releases/tag/v3.0.0. Use suggest_float{instead} instead.",
        FutureWarning,
        stacklevel=3,
    )


def _plain(value: Any) -> int | float:
    """Return a bound as JSON can hold it: Python's numbers as they are, NumPy's and torch's converted."""
    if isinstance(value, (int, float)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"a bound of a parameter must be a number, not {value!r}") from None


def _as_float(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"The `{name}` argument is of type '{type(value)}' but supposed to be a float.") from None


def _as_int(value: Any, name: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise TypeError(f"The `{name}` argument is of type '{type(value)}' but supposed to be an int.") from None


def _check_key(key: str) -> None:
    if not isinstance(key, str):
        raise TypeError(f"a key must be a str, not {type(key).__name__}")
    if key.startswith(RESERVED):
        raise ValueError(f"key {key!r} is reserved: names that begin with {RESERVED!r} are the pool's own")


def register_with_optuna() -> None:
    """Make `isinstance(trial, optuna.Trial)` true, now or once the objective has imported Optuna."""
    after_import("optuna.trial", lambda: sys.modules["optuna.trial"].Trial.register(ProxyTrial))
