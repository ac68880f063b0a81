"""The worker's side of a proxy trial: serves its calls from the real Optuna trial. Runs in the storage thread."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.distributions import distribution_to_json
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from vrampool.messages import ChildFrame
from vrampool_worker.child.proxy_trial import RESERVED


class TrialServer:
    """Answers the calls of one trial's child.

    Args:
        study: With the study's own sampler and pruner: an absent one would silently be another.
        trial: The real trial, usually a planned one, claimed by this worker.

    Attributes:
        stop_requested: The objective has called `trial.study.stop()`.
        finished_elsewhere: A write was refused because the trial has ended: failed from outside, or cancelled.
        reports: Values reported so far.
    """

    def __init__(self, study: optuna.Study, trial: Trial) -> None:
        self._study = study
        self._trial = trial
        self._in_doubt = False
        self.stop_requested = False
        self.finished_elsewhere = False
        self.reports = 0
        self._calls: dict[str, Callable[..., Any]] = {
            "suggest_float": self._suggest_float,
            "suggest_int": self._suggest_int,
            "suggest_categorical": self._suggest_categorical,
            "report": self._report,
            "should_prune": self._should_prune,
            "set_user_attr": self._set_user_attr,
            "set_constraint": self._set_constraint,
            "relative_params": lambda: self._trial.relative_params,
            "best_trial": lambda: frozen_to_json(self._study.best_trial),
            "best_trials": lambda: [frozen_to_json(trial) for trial in self._study.best_trials],
            "trials": self._trials,
            "stop_study": self._stop,
        }

    def snapshot(self) -> dict[str, Any]:
        """Return what the proxy trial is built from. All of it is JSON."""
        trial, study = self._trial, self._study
        started = trial.datetime_start
        return {
            "number": trial.number,
            "trial_id": trial._trial_id,
            "params": trial.params,
            "distributions": {name: distribution_to_json(item) for name, item in trial.distributions.items()},
            "user_attrs": trial.user_attrs,
            "constraints": trial.constraints,
            "steps": sorted(trial._cached_frozen_trial.intermediate_values),
            "datetime_start": None if started is None else started.isoformat(),
            "study": {
                "name": study.study_name,
                "directions": [direction.name for direction in study.directions],
                "user_attrs": study.user_attrs,
                "metric_names": study.metric_names,
                "sampler": _class_name(study.sampler),
                "pruner": _class_name(study.pruner),
            },
        }

    def handle(self, name: str, args: dict[str, Any]) -> Any:
        """Make one call; return a JSON value.

        Raises:
            StorageInternalError: the database could not be used. Make the same call again: what may have reached it
                before the fault is read back first, so that it is not done twice.
            Exception: anything that Optuna's trial raises; it belongs to the objective.
        """
        call = self._calls.get(name)
        if call is None:
            raise AttributeError(f"a trial has no call {name!r}")
        try:
            if self._in_doubt:
                self._read_back()
            return call(**args)
        except StorageInternalError:
            self._in_doubt = True
            raise
        except UpdateFinishedTrialError:
            self.finished_elsewhere = True
            raise

    def reply(self, call_id: int, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """Make one call and return the frame that answers it.

        Raises:
            StorageInternalError: as `handle`; nothing is to be answered yet.
        """
        try:
            value = self.handle(name, args)
        except StorageInternalError:
            raise
        except Exception as error:
            return {"t": ChildFrame.REPLY, "id": call_id, "ok": False, "error": describe_error(error)}
        return {"t": ChildFrame.REPLY, "id": call_id, "ok": True, "value": value}

    def _read_back(self) -> None:
        # A commit whose answer was lost may have stored a parameter. Sampling the name again would give another value,
        # and the storage would keep the first one without a word.
        self._trial._cached_frozen_trial = self._study._storage.get_trial(self._trial._trial_id)
        self._in_doubt = False

    # ---- calls ---------------------------------------------------------------------------------------

    def _suggest_float(self, name: str, low: float, high: float, step: float | None, log: bool) -> dict[str, Any]:
        return self._suggest(name, lambda: self._trial.suggest_float(name, low, high, step=step, log=log))

    def _suggest_int(self, name: str, low: int, high: int, step: int, log: bool) -> dict[str, Any]:
        return self._suggest(name, lambda: self._trial.suggest_int(name, low, high, step=step, log=log))

    def _suggest_categorical(self, name: str, choices: list[Any]) -> dict[str, Any]:
        def index() -> int:
            value = self._trial.suggest_categorical(name, choices)
            # From the stored distribution: making another one would warn about its choices a second time.
            return int(self._trial.distributions[name].to_internal_repr(value))

        return self._suggest(name, index)

    def _suggest(self, name: str, call: Callable[[], Any]) -> dict[str, Any]:
        """Return a value and what Optuna warned of: it is the objective that must read it."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                value = call()
            except ValueError as error:  # Optuna's text about changed choices or ranges does not say which parameter
                if repr(name) in str(error):
                    raise
                raise ValueError(f"{error} (parameter {name!r})") from None
        return {"value": value, "warnings": [[item.category.__name__, str(item.message)] for item in caught]}

    def _report(self, value: float, step: int) -> None:
        self._trial.report(value, step)
        self.reports += 1

    def _should_prune(self) -> bool:
        return bool(self._trial.should_prune())

    def _set_user_attr(self, key: str, value: Any) -> None:
        _check_key(key)
        self._trial.set_user_attr(key, value)

    def _set_constraint(self, key: str, value: float) -> None:
        _check_key(key)
        self._trial.set_constraint(key, value)

    def _trials(self, states: list[str] | None) -> list[dict[str, Any]]:
        wanted = None if states is None else [TrialState[name] for name in states]
        return [frozen_to_json(trial) for trial in self._study.get_trials(deepcopy=False, states=wanted)]

    def _stop(self) -> None:
        self.stop_requested = True


def _check_key(key: str) -> None:
    # Here too: a child can write any frame, and these words decide what the pool does with its trial.
    if not isinstance(key, str) or key.startswith(RESERVED):
        raise ValueError(f"key {key!r} is reserved: names that begin with {RESERVED!r} are the pool's own")


def _class_name(value: object) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def describe_error(error: BaseException) -> dict[str, str]:
    """Return an exception as the child can make it again."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return {"type": type(error).__qualname__, "module": type(error).__module__, "text": text}


def frozen_to_json(trial: FrozenTrial) -> dict[str, Any]:
    """Return Optuna's record of a trial as JSON; `proxy_study` builds it again."""
    started, completed = trial.datetime_start, trial.datetime_complete
    return {
        "number": trial.number,
        "trial_id": trial._trial_id,
        "state": trial.state.name,
        "values": trial.values,
        "datetime_start": None if started is None else started.isoformat(),
        "datetime_complete": None if completed is None else completed.isoformat(),
        "params": trial.params,
        "distributions": {name: distribution_to_json(item) for name, item in trial.distributions.items()},
        "user_attrs": trial.user_attrs,
        "system_attrs": trial.system_attrs,
        "intermediate_values": trial.intermediate_values,
    }
