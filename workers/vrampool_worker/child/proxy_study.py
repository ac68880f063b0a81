"""The study as the objective sees it through `trial.study`: to read from, and to stop."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import datetime

    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial, TrialState


class ProxyStudy:
    """Stands in for `optuna.Study` inside a trial. What would change the study raises, but for `stop`."""

    def __init__(self, call: Callable[..., Any], snapshot: dict[str, Any]) -> None:
        self._call = call
        self._directions: list[str] = list(snapshot.get("directions", ["MINIMIZE"]))
        self._user_attrs: dict[str, Any] = dict(snapshot.get("user_attrs", {}))
        self._sampler = str(snapshot.get("sampler", ""))
        self._pruner = str(snapshot.get("pruner", ""))
        self.study_name = str(snapshot.get("name", ""))
        self.metric_names: list[str] | None = snapshot.get("metric_names")

    def __repr__(self) -> str:
        return f"<study {self.study_name!r}, seen from a trial>"

    @property
    def n_objectives(self) -> int:
        """Number of values a trial must return."""
        return len(self._directions)

    # ---- facts ---------------------------------------------------------------------------------------

    @property
    def directions(self) -> list[StudyDirection]:
        from optuna.study import StudyDirection

        return [StudyDirection[name] for name in self._directions]

    @property
    def direction(self) -> StudyDirection:
        if self.n_objectives > 1:
            raise RuntimeError("A single direction cannot be retrieved from a multi-objective study.")
        return self.directions[0]

    @property
    def user_attrs(self) -> dict[str, Any]:
        return copy.deepcopy(self._user_attrs)

    @property
    def sampler(self) -> BaseSampler:
        """An instance of the study's sampler class, for type checks: it samples nothing here."""
        return _inert(self._sampler)  # type: ignore[no-any-return]

    @property
    def pruner(self) -> BasePruner:
        """An instance of the study's pruner class, for type checks; `trial.should_prune` asks the real one."""
        return _inert(self._pruner)  # type: ignore[no-any-return]

    # ---- trials, as they are now ---------------------------------------------------------------------

    @property
    def best_trial(self) -> FrozenTrial:
        return _frozen(self._call("best_trial"))

    @property
    def best_trials(self) -> list[FrozenTrial]:
        return [_frozen(trial) for trial in self._call("best_trials")]

    @property
    def best_value(self) -> float:
        return float(self._call("best_trial")["values"][0])

    @property
    def best_params(self) -> dict[str, Any]:
        return dict(self._call("best_trial")["params"])

    @property
    def trials(self) -> list[FrozenTrial]:
        return self.get_trials()

    def get_trials(self, deepcopy: bool = True, states: Iterable[TrialState] | None = None) -> list[FrozenTrial]:
        names = None if states is None else [state.name for state in states]
        return [_frozen(trial) for trial in self._call("trials", states=names)]

    # ---- what changes the study ----------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the pool to start no more trials of this study; running ones finish."""
        self._call("stop_study")

    def _read_only(self, name: str) -> NoReturn:
        raise RuntimeError(f"Study.{name} cannot be used inside a trial of a pool: do it where the study is submitted")

    def set_user_attr(self, key: str, value: Any) -> None:
        self._read_only("set_user_attr")

    def set_metric_names(self, metric_names: list[str]) -> None:
        self._read_only("set_metric_names")

    def enqueue_trial(self, *arguments: Any, **keywords: Any) -> None:
        self._read_only("enqueue_trial")

    def add_trial(self, trial: Any) -> None:
        self._read_only("add_trial")

    def ask(self, *arguments: Any, **keywords: Any) -> NoReturn:
        self._read_only("ask")

    def tell(self, *arguments: Any, **keywords: Any) -> NoReturn:
        self._read_only("tell")

    def optimize(self, *arguments: Any, **keywords: Any) -> None:
        self._read_only("optimize")


def _inert(name: str) -> Any:
    module_name, _, class_name = name.partition(":")
    kind: Any = importlib.import_module(module_name)
    for part in class_name.split("."):
        kind = getattr(kind, part)
    return kind.__new__(kind)


def _frozen(content: dict[str, Any]) -> FrozenTrial:
    """Build Optuna's record of a trial from `trial_server.frozen_to_json`."""
    from optuna.distributions import json_to_distribution
    from optuna.trial import FrozenTrial, TrialState

    return FrozenTrial(
        number=content["number"],
        trial_id=content["trial_id"],
        state=TrialState[content["state"]],
        value=None,
        values=content["values"],
        datetime_start=_time(content["datetime_start"]),
        datetime_complete=_time(content["datetime_complete"]),
        params=content["params"],
        distributions={name: json_to_distribution(text) for name, text in content["distributions"].items()},
        user_attrs=content["user_attrs"],
        system_attrs=content["system_attrs"],
        intermediate_values={int(step): value for step, value in content["intermediate_values"].items()},
    )


def _time(text: str | None) -> datetime.datetime | None:
    import datetime

    return None if text is None else datetime.datetime.fromisoformat(text)
