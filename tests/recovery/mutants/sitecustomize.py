"""Loaded by the Python processes of a pool under test: breaks one of its rules, or ends it at a chosen point.

The harness must catch each broken rule; one that it does not catch would go unseen in earnest too. The product knows
nothing of this: VRAMPOOL_TEST_MUTANT names what to do here, and modules are changed as they are imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def no_claim_check(module: ModuleType) -> None:
    """A worker runs what it was handed, whoever runs it already."""
    move = module.PoolDatabase.move_trial

    def moved(self: Any, trial_id: int, before: Any, after: Any, **more: Any) -> bool:
        done = move(self, trial_id, before, after, **more)
        claims = before.name == "WAITING" and after.name == "RUNNING"
        return done or (claims and not self.get_trial(trial_id).state.is_finished())

    module.PoolDatabase.move_trial = moved


def no_retry(module: ModuleType) -> None:
    """A lost trial is counted as it is."""
    module._after_infra = lambda trial, spec, attempts, text: module.Final(True, text)


def put_back(module: ModuleType) -> None:
    """A lost trial waits again, as if it had never run."""
    move = module.PoolDatabase.move_trial

    def moved(self: Any, trial_id: int, before: Any, after: Any, **more: Any) -> bool:
        if more.get("claimed_only"):
            return move(self, trial_id, before, before.__class__.WAITING)
        return move(self, trial_id, before, after, **more)

    module.PoolDatabase.move_trial = moved


def die_before_enqueueing_a_retry(module: ModuleType) -> None:
    """The coordinator ends between the creation of a retry and its place in the queue; the next one does not."""
    enqueue = module.JobQueue.enqueue

    def dying(self: Any, tickets: Any, *, front: bool = False, **more: Any) -> Any:
        if front and tickets and _first_time():
            os.kill(os.getpid(), signal.SIGKILL)
        return enqueue(self, tickets, front=front, **more)

    module.JobQueue.enqueue = dying


def die_before_telling(module: ModuleType) -> None:
    """The worker ends when its trial has ended and before that is told; the next one does not."""
    tell = module.StudyDesk.tell

    def dying(self: Any, *args: Any) -> Any:
        if _first_time():
            os.kill(os.getpid(), signal.SIGKILL)
        return tell(self, *args)

    module.StudyDesk.tell = dying


def die_after_telling(module: ModuleType) -> None:
    """The worker ends right after its trial's result is written; the next one does not."""
    tell = module.StudyDesk.tell

    def dying(self: Any, *args: Any) -> Any:
        told = tell(self, *args)
        if _first_time():
            os.kill(os.getpid(), signal.SIGKILL)
        return told

    module.StudyDesk.tell = dying


def own_locks(module: ModuleType) -> None:
    """Locks on devices lie in a folder of the test's: other pools of this host are not in its way."""
    module._FOLDERS = (module.Path(os.environ["VRAMPOOL_TEST_FOLDER"]),)


def _first_time() -> bool:
    try:
        os.close(os.open(os.path.join(os.environ["VRAMPOOL_TEST_FOLDER"], "died"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


MUTANTS: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "no_claim_check": ("vrampool.storage.database", no_claim_check),
    "no_retry": ("vrampool.retries", no_retry),
    "put_back": ("vrampool.storage.database", put_back),
    "die_before_enqueueing_a_retry": ("vrampool.queueing.job_queue", die_before_enqueueing_a_retry),
    "die_before_telling": ("vrampool_worker.desk", die_before_telling),
    "die_after_telling": ("vrampool_worker.desk", die_after_telling),
    "own_locks": ("vrampool_worker.devices.lock", own_locks),
}


class _Changer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module as everybody does, and changes it once it is loaded."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._change = change
        self._loader: Any = None

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name or self._loader is not None:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)


for _name in filter(None, os.environ.get("VRAMPOOL_TEST_MUTANT", "").split(",")):
    sys.meta_path.insert(0, _Changer(*MUTANTS[_name]))
