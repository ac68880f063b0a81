"""Pruners that end the probe's trials early. Workers open them by import path."""

from __future__ import annotations

from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import FrozenTrial

#: The probe's word on its study: ``{"reports": 2}``. It also tells other tools that the study is a probe's.
PROBE_ATTR = "vrampool:probe"
#: The second round has the optimizer's state, and an evaluation and a last batch behind it.
REPORTS = 2


class AfterFirstReport(BasePruner):
    """Ends a trial at its first report: its parameters are known by then."""

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        return bool(trial.intermediate_values)


class AfterReports(BasePruner):
    """Ends a trial after as many reports as the probe's study says."""

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        said = study.user_attrs.get(PROBE_ATTR) or {}
        return len(trial.intermediate_values) >= int(said.get("reports", REPORTS))
