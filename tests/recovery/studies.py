"""What tests read of submissions, by the storage alone."""

from __future__ import annotations

from optuna.trial import FrozenTrial
from recovery.execution_log import ExecutionLog
from recovery.processes import LIMIT_S
from support.waiting import until

import vrampool
from vrampool.storage import Catalog
from vrampool.storage.pool_storage import PoolStorage


class Studies:
    """For pools that have a storage and a log of executions."""

    storage: PoolStorage
    log: ExecutionLog
    limit_s = LIMIT_S  #: for what is waited for

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.storage)

    def trials(self, handle: vrampool.Handle) -> list[FrozenTrial]:
        """All trials of a submission's study."""
        study_id = self.storage.get_study_id_from_name(handle.study_name)
        return list(self.storage.get_all_trials(study_id, deepcopy=False))

    def state(self, handle: vrampool.Handle) -> str:
        row = self.catalog.submission(handle.id)
        assert row is not None
        return str(row.state)

    def await_end(self, handle: vrampool.Handle, *, limit_s: float | None = None) -> list[FrozenTrial]:
        """Wait until a submission is over; return its trials."""

        def over() -> bool:
            row = self.catalog.submission(handle.id)
            return row is not None and row.state.final

        until(over, what=f"the end of {handle.study_name}", timeout_s=limit_s or self.limit_s)
        return self.trials(handle)

    def await_note(self, word: str, number: int, *, limit_s: float | None = None) -> int:
        """Wait until a trial has written a word into the log; return its pid."""
        until(
            lambda: self.log.times(word)[number], what=f"{word!r} of trial {number}", timeout_s=limit_s or self.limit_s
        )
        pid = self.log.pid(number)
        assert pid is not None
        return pid
