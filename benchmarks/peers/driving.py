"""What a driver shares with the others: what is asked for, the storage, and how it says that it is done.

A driver is a program of its own that uses one way of running trials as its users would. It is measured from outside.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.work import note

#: The driver waits so long for whoever weighs it.
_WEIGHED_S = 20.0


@dataclass(frozen=True)
class Asked:
    """What a driver is asked to do."""

    folder: Path
    case: str
    trials: int
    at_once: int
    limit_s: float | None  #: of one trial
    weighed: bool
    server: str  #: a Redis server's program

    def to_environment(self) -> dict[str, str]:
        """Return it as variables, for the driver and all that it starts."""
        return {
            "PEERS_RUN": str(self.folder),
            "PEERS_CASE": self.case,
            "PEERS_TRIALS": str(self.trials),
            "PEERS_AT_ONCE": str(self.at_once),
            "PEERS_LIMIT_S": "" if self.limit_s is None else str(self.limit_s),
            "PEERS_WEIGHED": "1" if self.weighed else "",
            "PEERS_SERVER": self.server,
        }

    @classmethod
    def read(cls) -> Asked:
        """Read it back."""
        env = os.environ
        return cls(
            folder=Path(env["PEERS_RUN"]),
            case=env["PEERS_CASE"],
            trials=int(env["PEERS_TRIALS"]),
            at_once=int(env["PEERS_AT_ONCE"]),
            limit_s=float(env["PEERS_LIMIT_S"]) if env["PEERS_LIMIT_S"] else None,
            weighed=bool(env["PEERS_WEIGHED"]),
            server=env["PEERS_SERVER"],
        )


def quiet_optuna() -> Any:
    """Return Optuna, which says only what is wrong. Imported here: a spawned child would pay for it at the top."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def journal(folder: Path) -> Any:
    """Return the storage of ways that use several processes: a journal file, the quickest that Optuna has for that."""
    optuna = quiet_optuna()
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "journal.log"))
    return optuna.storages.JournalStorage(backend)


def create_study(storage: Any = None) -> Any:
    return quiet_optuna().create_study(storage=storage, study_name="peers")


def load_study(folder: Path) -> Any:
    return quiet_optuna().load_study(storage=journal(folder), study_name="peers")


def states(study: Any) -> dict[str, str]:
    """Return the state of each trial, by number."""
    return {str(trial.number): trial.state.name for trial in study.get_trials(deepcopy=False)}


def finish(asked: Asked, told: Mapping[str, str], **notes: Any) -> None:
    """Say what became of the trials, once, while everything is still up; then wait until that was weighed."""
    note(asked.folder, "done")
    (asked.folder / "result.json").write_text(json.dumps({"states": dict(told), **notes}))
    if asked.weighed:
        wait_until(lambda: (asked.folder / "weighed").exists())


def wait_until(condition: Callable[[], bool], most_s: float = _WEIGHED_S) -> bool:
    """Wait for a condition, and return whether it came true."""
    end_s = time.monotonic() + most_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.05)
    return True
