"""The sweep in children of a fork server that has everything imported: so many at once, or packed by an oracle."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

from benchmarks.sweep.ending import end_with_parent
from benchmarks.sweep.plan import BUDGET_SHARE, Plan
from benchmarks.sweep.summary import Attempt
from benchmarks.sweep.trials import Trial, all_trials

PRELOADED = ["torch", "torchvision.models", "torch._dynamo", "benchmarks.sweep.by_hand", "benchmarks.sweep.training"]
#: The oracle runs no more than so many at once: past the point where the card still gains.
ORACLE_AT_ONCE = 12
#: Until the fork server has imported all that, and a first child has gone.
_SERVER_S = 120.0
_LIBRARY_OOM = re.compile(r"ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS")
#: Which of those that wait to start next, given what they and the running ones need in GiB; None: none now.
Pick = Callable[[Sequence[float], Sequence[float]], int | None]


def first_of_all(waiting: Sequence[float], _running: Sequence[float]) -> int | None:
    """In the order they were given, whatever they need."""
    return 0 if waiting else None


def packing(card_gib: float) -> Pick:
    """The largest that fits beside those that run, to 85 % of the card; alone any that the card holds."""

    def pick(waiting: Sequence[float], running: Sequence[float]) -> int | None:
        room = BUDGET_SHARE * card_gib - sum(running) if running else card_gib
        fitting = [index for index, need in enumerate(waiting) if need <= room]
        return max(fitting, key=lambda index: waiting[index], default=None)

    return pick


@dataclass(frozen=True)
class Ran:
    """What came of it."""

    attempts: list[Attempt]
    began_s: float  #: by the monotonic clock
    makespan_s: float
    cut: bool


class ByHand:
    """Runs the trials of a plan, each in a child.

    Args:
        plan: The sweep.
        method: How children start: "forkserver", or "spawn", which imports everything in each.
        on_attempt: Is told of each attempt as it ends.
    """

    def __init__(self, plan: Plan, method: str, on_attempt: Callable[[Attempt], None]) -> None:
        self._plan = plan
        self._context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload(["__main__", *PRELOADED])
        self._on_attempt = on_attempt
        # In a dry run this stands for the card's memory, a number for each trial.
        self._ledger = self._context.Array("d", len(all_trials())) if plan.dry else None
        self._children: dict[Any, _Child] = {}

    def warm_up(self) -> float:
        """Start the fork server and wait until it works; return the seconds that took."""
        began_s = time.monotonic()
        process = self._context.Process(target=_nothing, daemon=True)
        process.start()
        process.join(_SERVER_S)
        if process.exitcode != 0:
            raise RuntimeError(f"the first child of the fork server ended with {process.exitcode}")
        return time.monotonic() - began_s

    def run(self, trials: Sequence[Trial], at_most: int, pick: Pick, limit_s: float) -> Ran:
        """Run them, at most so many at once; what has not ended after `limit_s` is killed."""
        needs = self._plan.need_gib
        waiting, attempts = list(trials), list[Attempt]()
        began_s = time.monotonic()
        while waiting or self._children:
            while len(self._children) < at_most:
                chosen = pick(
                    [needs[item.id] for item in waiting], [needs[c.trial.id] for c in self._children.values()]
                )
                if chosen is None:
                    break
                self._start(waiting.pop(chosen))
            left_s = began_s + limit_s - time.monotonic()
            if left_s <= 0:
                break
            ready = connection.wait(list(self._children), timeout=left_s)
            for sentinel in ready:
                attempt = self._ended(self._children.pop(sentinel), began_s)
                attempts.append(attempt)
                self._on_attempt(attempt)
        makespan_s = time.monotonic() - began_s
        cut = bool(waiting or self._children)
        self.close()
        return Ran(attempts, began_s, makespan_s, cut)

    def close(self) -> None:
        """Kill what still runs."""
        for child in self._children.values():
            child.process.kill()
            child.process.join()
        self._children.clear()

    def _start(self, trial: Trial) -> None:
        mine, theirs = self._context.Pipe(duplex=False)
        arguments = (theirs, trial, self._plan, self._ledger)
        process = self._context.Process(target=_child, args=arguments, daemon=True)
        started_s = time.monotonic()
        process.start()
        theirs.close()
        self._children[process.sentinel] = _Child(trial, process, mine, started_s)

    def _ended(self, child: _Child, began_s: float) -> Attempt:
        child.process.join()
        told: dict[str, Any] = {"end": "crashed", "text": f"exit code {child.process.exitcode}"}
        with contextlib.suppress(EOFError, OSError), child.pipe:
            if child.pipe.poll():
                told = child.pipe.recv()
        if self._ledger is not None:
            self._ledger[child.trial.id] = 0.0
        verdict = None
        if told["end"] == "oom":  # whoever fits the card and still found it full was harmed by the others
            verdict = "culprit" if child.trial.id in self._plan.beyond else "victim"
        started_s, ended_s = child.started_s - began_s, time.monotonic() - began_s
        end, text = told.pop("end"), told.pop("text", "")
        told |= child.trial.params | {"need_gib": self._plan.need_gib[child.trial.id]}
        told["alone_s"] = round(self._plan.alone_s(child.trial.id), 2)
        return Attempt(child.trial.id, round(started_s, 3), round(ended_s, 3), end, 1, verdict, text, told)


@dataclass(frozen=True)
class _Child:
    trial: Trial
    process: Any
    pipe: Any
    started_s: float


def _nothing() -> None:
    """Only shows that children start."""


def _child(pipe: Any, trial: Trial, plan: Plan, ledger: Any) -> None:
    end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    began_s = time.monotonic()
    import torch

    from benchmarks.sweep.training import train

    torch.set_num_threads(1 if plan.dry else 2)
    imported_s = time.monotonic()

    def grow(gib: float) -> None:
        with ledger.get_lock():
            if sum(ledger) + gib > plan.card_gib:
                raise torch.OutOfMemoryError(f"out of memory: tried to allocate {gib:.2f} GiB")
            ledger[trial.id] += gib

    told: dict[str, Any] = {"end": "complete"}
    try:
        dry_grow = grow if ledger is not None else None
        told["loss"] = train(trial, plan.steps[trial.id], plan.device, tiny=plan.dry, grow=dry_grow)
    except Exception as error:  # whatever it is, the parent is told
        text = f"{type(error).__name__}: {error}"
        full = isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or _LIBRARY_OOM.search(text)
        told = {"end": "oom" if full else "failed", "text": text[:500]}
    told["import_s"] = round(imported_s - began_s, 3)
    told["run_s"] = round(time.monotonic() - imported_s, 3)
    if torch.cuda.is_initialized():
        told["reserved_gib"] = round(torch.cuda.max_memory_reserved() / 2**30, 2)
    pipe.send(told)
    pipe.close()
    os._exit(0)
