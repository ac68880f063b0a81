"""The trial itself, in its own process: set what must hold, load the objective, call it, judge how it ended."""

# Not pathlib here: it takes longer to import than all of this may.
# ruff: noqa: PTH103, PTH118

from __future__ import annotations

import dataclasses
import hashlib  # noqa: F401  needed by the loader, and slow: imported while nobody waits
import os
import sys
import threading  # noqa: F401  as above
from collections.abc import Callable
from typing import Any

from vrampool.errors import MessageError
from vrampool.messages import ChildFrame, ChildStart, Outcome, OutcomeKind
from vrampool.objectives.loading import load
from vrampool_worker.child import memory as child_memory
from vrampool_worker.child import outcomes
from vrampool_worker.child.channel import Channel
from vrampool_worker.child.proxy_trial import ProxyTrial, register_with_optuna
from vrampool_worker.child.stopping import StopGate
from vrampool_worker.child.training_link import TrainingLink

#: The device is the worker's choice, made before the process began; a submission's env= cannot move a trial to another.
_FIXED_VARIABLES = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"}
#: Given back when memory has run out, so that the end can still be told.
_BALLAST_BYTES = 4 * 1024**2


class TrialRun:
    """Waits for the one trial of this process, runs it, and says how it ended."""

    def __init__(self, frames_fd: int, scratch: str) -> None:
        self._gate = StopGate()
        self._channel = Channel(frames_fd, self._gate)
        self._scratch = scratch
        self._memory: child_memory.TrialMemory | None = None
        self._training: TrainingLink | None = None
        self._ballast: bytes | None = None

    def run(self) -> None:
        """Run the trial and tell its outcome. Exits where no trial comes: a spare that nobody needed."""
        start, bundle = self._wait_for_start()
        outcome = self._run_guarded(start, bundle)
        if self._training is not None:
            self._training.finish()
        imported = tuple(name for name in start.look_for if name in sys.modules)
        self._channel.send(ChildFrame.OUTCOME, **dataclasses.replace(outcome, imported=imported).to_json())

    def _wait_for_start(self) -> tuple[ChildStart, bytes | None]:
        frame = self._channel.receive()
        if frame is None:
            os._exit(0)
        if isinstance(frame, bytes) or frame.get("t") != ChildFrame.START:
            raise MessageError("the first frame must be the start of a trial")
        start = ChildStart.from_json(frame["start"])
        if not start.has_bundle:
            return start, None
        bundle = self._channel.receive()
        if not isinstance(bundle, bytes):
            raise MessageError("the bundle of the objective is missing")
        return start, bundle

    def _run_guarded(self, start: ChildStart, bundle: bytes | None) -> Outcome:
        """Run the trial; whatever happens, return how it ended."""
        loading = True
        try:
            self._gate.install()
            self._ballast = bytes(_BALLAST_BYTES)  # not touched, so no memory yet: the limit counts what is reserved
            self._begin(start)
            self._enter_directory(start)
            objective = load(start.objective, bundle, bundle_file=os.path.join(self._scratch, "bundle"))
            loading = False
            outcome = self._call(objective, start)
            self._gate.close()  # in here: a stop that comes just now must find its handler below
        except BaseException as error:  # SystemExit and the objective's own kinds too: each has its outcome
            self._gate.close()
            self._ballast = None
            outcome = _judge(error, loading)
        return self._with_sample(outcome)

    def _begin(self, start: ChildStart) -> None:
        """Set everything that must hold before user code runs; then say so."""
        os.environ.update({key: value for key, value in start.env.items() if key not in _FIXED_VARIABLES})
        os.environ.update(start.device_env)
        sys.argv = [start.objective.target]  # an objective that parses arguments must not find ours
        send = self._channel.send
        child_memory.volunteer_for_oom()
        memory = child_memory.TrialMemory(start, send)
        self._memory = memory
        self._channel.start(self._on_order)
        cap_bytes, source = memory.begin()
        child_memory.seed_everything(start.seed)
        self._training = TrainingLink(start, send, memory.note_oom_handled, memory.ask_if_short)
        self._training.begin()
        register_with_optuna()
        send(ChildFrame.STARTED, cap_bytes=cap_bytes, cap_source=source)

    def _on_order(self, frame: dict[str, Any]) -> None:
        """Obey the worker; called by the thread that reads."""
        if self._memory is None:
            return
        if frame.get("t") == ChildFrame.RECAP:
            self._memory.recap(int(frame["cap_bytes"]))
        elif frame.get("t") == ChildFrame.STAY:
            self._memory.stay()

    def _enter_directory(self, start: ChildStart) -> None:
        os.makedirs(self._scratch, mode=0o700, exist_ok=True)
        os.chdir(start.objective.workdir or self._scratch)

    def _call(self, objective: Callable[[Any], Any], start: ChildStart) -> Outcome:
        trial = ProxyTrial(self._call_worker, start.trial, self._gate.hold)
        returned = objective(trial)
        return outcomes.from_value(returned, trial.study.n_objectives)

    def _call_worker(self, name: str, /, **arguments: Any) -> Any:
        if name == "report" and self._memory is not None:
            self._memory.ask_if_short()
        return self._channel.call(name, **arguments)

    def _with_sample(self, outcome: Outcome) -> Outcome:
        if self._memory is None:
            return outcome
        try:
            sample = self._memory.sample().to_json()
        except Exception:  # a lost device; the end must be told all the same
            return outcome
        return Outcome.from_json({**outcome.to_json(), "sample": sample})


def _judge(error: BaseException, loading: bool) -> Outcome:
    try:
        outcome = outcomes.from_error(error, loading=loading)
        if outcome.traceback:
            print(outcome.traceback, end="", file=sys.stderr)
    except BaseException as failure:  # no memory left even for that, or stderr is closed
        kind = type(error)
        text = f"its text could not be made ({type(failure).__name__})"
        outcome = Outcome(kind=OutcomeKind.FAILED, type_name=f"{kind.__module__}.{kind.__qualname__}", text=text)
    return outcome
