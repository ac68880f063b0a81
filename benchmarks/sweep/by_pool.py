"""The sweep in a pool that knows nothing of it beforehand, and what the pool itself tells of how it went."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import psutil

import vrampool
from benchmarks.gpu_pool import card_pool
from benchmarks.sweep.breakdown import Look
from benchmarks.sweep.plan import BUDGET_SHARE, PLAN_VARIABLE, Plan
from benchmarks.sweep.summary import Attempt
from vrampool.errors import VrampoolError
from vrampool.handle import Handle
from vrampool.queueing import History, WorkerRecord
from vrampool.settings import Settings
from vrampool.storage import mark_of
from vrampool.units import GIB
from vrampool.waiting import why_each_waits

OBJECTIVE = "benchmarks.sweep.objective:objective"
STUDY = "sweep"
#: What everybody who runs such a sweep would import ahead; the ways by hand have it imported too.
PRELOAD = "torch,torch._dynamo,torchvision.models"
#: Limits to waiting: for a worker, and until its spares have imported everything.
_READY_S, _QUIET_S = 90.0, 60.0
_LOOK_EVERY_S = 0.25
#: Of an attempt's facts these are kept: what it asked for, got and held, how it ended, and what it cost beside.
_KEPT = (
    "request_bytes",
    "request_reason",
    "lease_bytes",
    "lease_at_end_bytes",
    "cap_bytes",
    "overhead_bytes",
    "peak_bytes",
    "peak_source",
    "shrunk_from_bytes",
    "max_torch_reserved_bytes",
    "max_allocated_bytes",
    "num_ooms",
    "num_alloc_retries",
    "asked_bytes",
    "held_bytes",
    "text",
    "wait_s",
    "spawn_s",
    "import_s",
    "handover_s",
    "context_s",
    "exit_s",
    "run_s",
    "spare",
    "forked",
    "mps",
    "mps_reason",
)


@dataclass
class Seen:
    """What was seen of a way."""

    attempts: list[Attempt] = field(default_factory=list)
    began_s: float = 0.0  #: by the monotonic clock
    began_epoch_s: float = 0.0
    makespan_s: float = 0.0  #: from the submission until the study was complete
    cut: bool = False
    startup_s: float = 0.0  #: until a worker was there
    warm_s: float = 0.0  #: after that, until nothing of the pool computed any more: its spares had imported everything
    budget_bytes: int = 0
    state: str = ""  #: of the submission at the end, with its reason
    looks: list[Look] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    releases: list[dict[str, Any]] = field(default_factory=list)


def run(plan: Plan, plan_file: Path, state: Path, settings: Mapping[str, Any], limit_s: float) -> Seen:
    """Start a pool, submit the sweep, wait for its end.

    Args:
        plan: The sweep.
        plan_file: Where the trials read it.
        state: Folder of the pool; new.
        settings: Of the pool, where not its defaults.
        limit_s: When the submission has not ended by then, it is cancelled.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seen = Seen()
    started_s = time.monotonic()
    with _pool(plan, state, settings) as pool:
        _await_worker(pool)
        seen.startup_s = round(time.monotonic() - started_s, 2)
        seen.warm_s = _await_quiet()
        watch = QueueWatch(pool)
        watch.start()
        try:
            _submit(pool, plan, plan_file, limit_s, seen)
        finally:
            watch.stop()
        seen.looks = watch.looks
        history = History(pool.connection, pool.settings.pool)
        for device in pool.devices():
            seen.budget_bytes = device.budget_bytes
            seen.samples += history.samples(device.device_id, seen.began_epoch_s)
        seen.releases = history.releases(STUDY)
    return seen


@contextmanager
def _pool(plan: Plan, state: Path, settings: Mapping[str, Any]) -> Iterator[vrampool.Pool]:
    # `card_pool` has defaults of its own: here a pool is measured as its users get it.
    plain = {"spares": Settings.spares, "max_trials": Settings.max_trials, "sample_s": Settings.sample_s}
    options: dict[str, Any] = plain | {"preload": PRELOAD, "grace_s": 3.0} | dict(settings)
    if not plan.dry:
        card_bytes = None if plan.whole else int(plan.card_gib * GIB)
        with card_pool(state, card_bytes, plan.ballast_bytes, **options) as pool:
            yield pool
        return
    budget = f"{BUDGET_SHARE * plan.card_gib * plan.dry_bytes_per_gib / 1024**2:.0f}MiB"
    with vrampool.Pool(state_dir=state, gpu="cpu", share=True, budget=budget, **options) as pool:
        yield pool


def _await_worker(pool: vrampool.Pool) -> None:
    """Wait until a worker has room, and MPS, where it was asked for, is up or known not to come."""
    end_s = time.monotonic() + _READY_S
    while not any(_is_ready(device) for device in pool.devices()):
        if time.monotonic() > end_s:
            told = "; ".join(f"{device.state}: {device.reason}" for device in pool.devices())
            raise TimeoutError(f"no worker was ready after {_READY_S:g} s ({told or 'none was there'})")
        time.sleep(0.05)


def _is_ready(device: WorkerRecord) -> bool:
    starting = device.mps is not None and device.mps.state == "starting"
    return device.state == "ready" and device.free_bytes > 0 and not starting


def _await_quiet() -> float:
    """Wait until the processes below this one use no CPU to speak of for a second; return the seconds that took."""
    began_s = last_busy_s = time.monotonic()
    used_s = _cpu_s()
    while time.monotonic() - last_busy_s < 1.0 and time.monotonic() - began_s < _QUIET_S:
        time.sleep(0.25)
        before_s, used_s = used_s, _cpu_s()
        if used_s - before_s > 0.1:
            last_busy_s = time.monotonic()
    return round(last_busy_s - began_s, 2)


def _cpu_s() -> float:
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _submit(pool: vrampool.Pool, plan: Plan, plan_file: Path, limit_s: float, seen: Seen) -> None:
    points = [trial.params for trial in plan.trials]
    seen.began_s, seen.began_epoch_s = time.monotonic(), time.time()
    handle = pool.submit(
        OBJECTIVE,
        len(points),
        study_name=STUDY,
        points=points,
        sampler=optuna.samplers.RandomSampler(seed=1),
        env={PLAN_VARIABLE: str(plan_file)},
    )
    try:
        handle.wait(limit_s)
    except TimeoutError:
        seen.cut = True
    except VrampoolError as error:  # the submission or the pool has failed: what ran until then is told all the same
        seen.state = f"{type(error).__name__}: {error}"
    except BaseException:
        handle.cancel("the measurement was ended")
        raise
    seen.makespan_s = time.monotonic() - seen.began_s
    if seen.cut:
        handle.cancel("its time is up")
    seen.state = seen.state or f"{handle.state}: {handle.reason}".rstrip(": ")
    seen.attempts = attempts_of(handle, plan, seen.began_epoch_s, seen.makespan_s)


def attempts_of(handle: Handle, plan: Plan, began_epoch_s: float, makespan_s: float) -> list[Attempt]:
    """Return all attempts of a submission that began, in order."""
    found = []
    for trial in handle.trials:
        mark = mark_of(trial)
        if trial.datetime_start is None or mark is None or mark.point is None:
            continue
        index = plan.order[mark.point]
        facts = trial.user_attrs.get("vrampool:attempt", {})
        start_s = _epoch(trial.datetime_start) - began_epoch_s
        end_s = makespan_s if trial.datetime_complete is None else _epoch(trial.datetime_complete) - began_epoch_s
        kept = {name: facts.get(name) for name in _KEPT} | {"alone_s": round(plan.alone_s(index), 2)}
        kept |= {"number": trial.number, "need_gib": plan.need_gib[index], **plan.trials[mark.point].params}
        end = facts.get("end", "cancelled")
        text = str(facts.get("text", ""))
        item = Attempt(index, round(start_s, 3), round(end_s, 3), end, mark.attempt, facts.get("verdict"), text, kept)
        found.append(item)
    return found


def _epoch(moment: Any) -> float:
    """Return seconds since the epoch of a time from Optuna's storage."""
    return float(moment.timestamp())


class QueueWatch(threading.Thread):
    """Looks at the pool's queue four times a second: how many wait, and why the first of them does."""

    def __init__(self, pool: vrampool.Pool) -> None:
        super().__init__(name="queue-watch", daemon=True)
        self._pool = pool
        self._stopped = threading.Event()
        self.looks: list[Look] = []

    def run(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            with suppress(VrampoolError):
                self.looks.append(self._look())

    def stop(self) -> None:
        self._stopped.set()
        self.join(5)

    def _look(self) -> Look:
        jobs, workers = self._pool.queue(), self._pool.devices()
        sentences = why_each_waits(jobs, workers)
        return Look(
            at_s=time.time(),
            waiting=len(jobs),
            running=sum(len(worker.running) for worker in workers),
            why=sentences[jobs[0].job_id] if jobs else "",
            state="; ".join(f"{worker.state} {worker.reason}".strip() for worker in workers),
            free_gib=round(sum(worker.free_bytes for worker in workers) / GIB, 2),
        )
