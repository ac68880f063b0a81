"""A stepped pool whose trials need memory: what they hold follows from their parameters, and too much ends them.

As in `stepped_pool` everything but processes and devices is real: the coordinator with its sampler, the queue, the
desks, verdicts and settlements. Nothing is declared, so the pool learns what trials need; fits are waited for, as
trials of a real pool take longer than a fit.
"""

from __future__ import annotations

import itertools
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.stepped_pool import SteppedPool, SteppedWorker, _ready_database, _Running, stand_in

import vrampool
from vrampool.memory.verdicts import MemoryFault, MemoryKind
from vrampool.messages import MemorySample, Outcome, OutcomeKind
from vrampool.queueing import Offer, RunningTrial, WorkerRecord
from vrampool.units import GIB, MIB
from vrampool_worker.attempts import Attempt
from vrampool_worker.desk import NotOpened, Opened
from vrampool_worker.settlement import Place, conclude

BUDGET_BYTES = 16 * GIB
OVERHEAD_BYTES = 600 * MIB
DEVICE_NAME = "Paper 9000"


class MemoryWorker(SteppedWorker):
    """One trial at a time on a card of its own. `needs` says what parameters hold beyond the overhead."""

    needs: Callable[[Mapping[str, Any]], int]
    _leases = itertools.count()

    def tell_registry(self) -> None:
        record = WorkerRecord(
            name=self.name,
            host="here",
            pid=1,
            device_id=self.name,
            device_name=f"GPU 0 ({DEVICE_NAME})",
            device_kind="cuda",
            total_bytes=BUDGET_BYTES * 5 // 4,
            budget_bytes=BUDGET_BYTES,
            free_bytes=0 if self.running else BUDGET_BYTES,
            slots=1,
            state="ready",
            running=tuple(RunningTrial("", item.attempt.ticket.number, 0, None, 0.0) for item in self.running),
            overhead_bytes=OVERHEAD_BYTES,
        )
        self.registry.beat(record, 600.0)

    def take(self) -> tuple[Attempt, Opened] | None:
        while not self.running:
            offer = Offer(
                worker=self.name,
                lease_id=f"{self.name}-{next(self._leases)}",
                free_bytes=BUDGET_BYTES,
                idle=True,
                ttl_ms=600_000,
                device_id=self.name,
                device_kind="cuda",
            )
            found = self.port.take(offer)
            if found is None:
                return None
            taken, ticket = found
            opened = self.desk.open(ticket)
            if isinstance(opened, NotOpened):
                assert not opened.refuse, opened.reason
                self.port.discard(taken.job_id, offer.lease_id)
                continue
            lease_bytes = BUDGET_BYTES if ticket.vram_bytes is None else ticket.vram_bytes
            attempt = Attempt(taken.job_id, offer.lease_id, ticket, 0.0, taken.wait_s, lease_bytes=lease_bytes)
            attempt.exclusive = ticket.vram_bytes is None
            attempt.lease_at_end_bytes = lease_bytes
            attempt.request_reason = opened.request_reason
            attempt.spec, attempt.server = opened.spec, opened.server
            return attempt, opened
        return None

    def run(self, attempt: Attempt, opened: Opened, objective: Callable[[Any], Any]) -> None:
        """Call the objective; if its trial needs more than its lease, it ran out of memory instead."""
        super().run(attempt, opened, objective)
        need = self.needs(self.desk._storage.get_trial(attempt.ticket.trial_id).params)
        room = attempt.lease_bytes - OVERHEAD_BYTES
        attempt.sample = MemorySample(max_torch_reserved_bytes=min(need, int(0.97 * room)))
        if need > room:
            free = BUDGET_BYTES - attempt.lease_bytes + 4 * GIB
            fault = MemoryFault(MemoryKind.CUDA, max(int(0.05 * room), 1), room, free)
            mro = ("torch.OutOfMemoryError", "builtins.RuntimeError")
            attempt.outcome = Outcome(OutcomeKind.OOM, None, mro[0], mro, "CUDA out of memory", memory=fault.to_dict())

    def settle(self, item: _Running) -> str:
        self.running.remove(item)
        attempt = item.attempt
        attempt.started_at_s, attempt.ended_at_s = 0.0, 1.0
        place = Place(
            *(self.name, "here", self.name, DEVICE_NAME, "cuda", BUDGET_BYTES, BUDGET_BYTES, BUDGET_BYTES),
            *(OVERHEAD_BYTES, BUDGET_BYTES),
        )
        conclusion = conclude(attempt, place)
        assert attempt.spec is not None
        told = self.desk.tell(attempt.ticket, attempt.spec, conclusion)
        good = attempt.outcome is not None and attempt.outcome.kind in (OutcomeKind.VALUE, OutcomeKind.PRUNED)
        self.port.finish(attempt.job_id, item.execution_id, "finished" if good else "failed", "", 0.0)
        return told


class MemoryPool(SteppedPool):
    """See the module. Build it with `memory_pool`."""

    def __init__(self, redis: str, storage: str, needs: Callable[[Mapping[str, Any]], int], workers: int) -> None:
        self._needs = needs
        super().__init__(redis, storage, workers=workers, slots=1)

    def add_worker(self) -> None:
        worker = MemoryWorker(self.settings, f"w{next(self._names)}", 1)
        worker.needs = self._needs
        self.workers.append(worker)

    def submit(self, objective: Callable[[Any], Any], n_trials: int | None = None, **options: Any) -> vrampool.Handle:
        handle = self.pool.submit(f"{Path(stand_in.__code__.co_filename)}:stand_in", n_trials, **options)
        self._objectives[handle.id] = objective
        return handle

    def turn(self, lasts: Any = None) -> bool:
        assert self.coordinator._learning._fitter.settle(60.0)
        return super().turn(lasts)


@contextmanager
def memory_pool(
    redis: str, folder: Path, needs: Callable[[Mapping[str, Any]], int], *, workers: int = 1
) -> Iterator[MemoryPool]:
    """A pool whose trials hold what `needs` says of their parameters, beyond the overhead of a process."""
    path = folder / f"{uuid.uuid4().hex[:8]}.db"
    shutil.copy(_ready_database(), path)
    made = MemoryPool(redis, f"sqlite:///{path}", needs, workers)
    try:
        yield made
    finally:
        made.close()
