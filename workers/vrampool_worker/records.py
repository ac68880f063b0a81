"""What others are told of this worker: its record with every beat, samples and releases for the history, RQ's books."""

from __future__ import annotations

import logging
import os
import platform
import time
from importlib import metadata
from typing import TYPE_CHECKING, Any

from vrampool._version import __version__
from vrampool.messages import WIRE_VERSION, EndKind
from vrampool.queueing import MpsState, RunningTrial, TransientRedisError, WorkerRecord
from vrampool_worker.asking import full_submissions
from vrampool_worker.attempts import UNDER_WAY, Attempt, Stage
from vrampool_worker.beat import Held
from vrampool_worker.calibration import Calibration
from vrampool_worker.devices import DeviceReading
from vrampool_worker.ledger import Release
from vrampool_worker.settlement import Conclusion

if TYPE_CHECKING:
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")
_RETRY_S = 1.0
#: What trials hold changes all the time; beats carry figures that are no older than this.
FIGURES_S = 1.0
#: Pause between two samples of a device on which nothing runs: others' use of it is still seen.
IDLE_SAMPLE_S = 5.0


class Chronicle:
    """Tells the pool what this worker does. Only the main loop calls it; writing is done in the queue lane."""

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop
        self._told: tuple[Any, ...] | None = None
        self._told_s = 0.0
        self._pending = 0
        self._sampled_at = 0.0  # seconds since the epoch
        self._was_busy = False
        self._versions = versions()
        self.calibration = Calibration(loop, self._versions.get("torch"))

    @property
    def idle(self) -> bool:
        """True when everything that was to be written is written."""
        return self._pending == 0

    # ---- the record ----------------------------------------------------------------------------------

    def held(self) -> Held | None:
        """Return what is held now if that is news for the coordinator, or for people from time to time; else None."""
        loop, now_s = self._loop, time.monotonic()
        offer = loop.ledger.offer(time.monotonic())
        state, reason = loop.ledger.state
        running = [item for item in loop.attempts.values() if item.stage in UNDER_WAY]
        news = (
            state,
            reason,
            offer.free_bytes // (16 * 1024**2),
            offer.idle,
            loop.ledger.earmark,
            0 if offer.closed else loop.memory.moves.shrinkable_bytes() // (64 * 1024**2),
            tuple((item.lease_id, item.reported and item.settled, item.exclusive, item.trouble) for item in running),
            tuple((item.job_id, item.execution_id) for item in loop.attempts.values()),
            tuple(loop.refused),
            loop.releases.sentences,
            _troubles(loop),
            _unknown(loop),
            loop.ledger.overhead_bytes,
        )
        urgent = news != self._told
        if not urgent and now_s - self._told_s < FIGURES_S:
            return None
        self._told, self._told_s = news, now_s
        record = self._record(offer.free_bytes, state, offer.reason or reason)
        jobs = tuple(
            item.job_id
            for item in loop.attempts.values()
            if item.dropped is None and item.stage in (*UNDER_WAY, Stage.ENDED)
        )
        executions = tuple(
            (item.job_id, item.execution_id)
            for item in loop.attempts.values()
            if item.execution_id is not None and item.job_id in jobs
        )
        return Held(record, jobs, executions, urgent)

    def _record(self, free_bytes: int, state: str, reason: str) -> WorkerRecord:
        loop = self._loop
        running = tuple(
            RunningTrial(
                study=item.ticket.study_name,
                number=item.ticket.number,
                lease_bytes=item.lease_at_end_bytes,
                measured_bytes=loop.ledger.measured(item.lease_id),
                since=item.started_epoch_s or time.time(),
                peak_bytes=(loop.memory.peak(item) or None) if item.reported and item.settled else None,
                reason=loop.ledger.said(item.lease_id),
                trouble=item.trouble,
            )
            for item in loop.attempts.values()
            if item.stage is not Stage.CLOSED and not item.released
        )
        return WorkerRecord(
            name=loop.name,
            host=loop.host,
            pid=os.getpid(),
            device_id=loop.device.id,
            device_name=f"{loop.device.label} ({loop.device.name})",
            device_kind=loop.device.kind,
            total_bytes=loop.device.total_bytes,
            budget_bytes=loop.ledger.budget_bytes,
            free_bytes=free_bytes,
            # Before the first reading nobody knows the driver's part: more than there is would be waited for.
            grantable_bytes=loop.ledger.grantable_bytes if loop.reading is not None else 0,
            shrinkable_bytes=loop.memory.moves.shrinkable_bytes() if state == "ready" else 0,
            slots=loop.ledger.max_trials,
            state=state,
            reason=reason,
            running=running,
            refused=dict(loop.refused),
            versions=self._versions,
            most_bytes=loop.ledger.most_bytes(time.monotonic()),
            room_bytes=loop.ledger.offer(time.monotonic()).room_bytes,
            earmark=loop.ledger.earmark.job_id if loop.ledger.earmark else "",
            full_submissions=tuple(full_submissions(loop)),
            unknown=_unknown(loop),
            leftovers=loop.releases.sentences,
            troubles=_troubles(loop),
            overhead_bytes=loop.ledger.overhead_bytes if loop.device.kind == "cuda" else None,
            mps=_mps(loop),
            beat_at=time.time(),
        )

    # ---- history -------------------------------------------------------------------------------------

    def sample(self, now_epoch_s: float) -> None:
        """Add a sample of the device to the history: at every call while anything runs, now and then while idle."""
        loop = self._loop
        if loop.reading is None or self._pending > 20:
            return
        if not loop.attempts and not self._was_busy and now_epoch_s - self._sampled_at < IDLE_SAMPLE_S:
            return
        self._sampled_at, self._was_busy = now_epoch_s, bool(loop.attempts)  # the first one without trials ends them
        sample = {
            "at_s": round(now_epoch_s, 3),
            "worker": loop.name,
            "host": loop.host,
            "device_id": loop.device.id,
            "device_name": f"{loop.device.label} ({loop.device.name})",
            "total_bytes": loop.device.total_bytes,
            "budget_bytes": loop.ledger.budget_bytes,
            "used_bytes": loop.reading.used_bytes,
            "driver_reserved_bytes": loop.reading.driver_reserved_bytes,
            "strangers_bytes": loop.ledger.strangers_bytes,
            "utilisation": loop.reading.utilisation,
            "trials": [
                {
                    "study": item.ticket.study_name,
                    "number": item.ticket.number,
                    "lease_bytes": item.lease_at_end_bytes,
                    "measured_bytes": loop.ledger.measured(item.lease_id),
                    **_allocator(item),
                }
                for item in loop.attempts.values()
                if not item.released
            ],
        }
        self._write(lambda: loop.port.add_sample(loop.device.id, sample))

    def released(self, attempt: Attempt, release: Release, reading: DeviceReading) -> None:
        """A trial's memory was seen back: that goes into the history, for finished trials cannot be changed."""
        entry = {
            "job_id": attempt.job_id,
            "study": attempt.ticket.study_name,
            "number": attempt.ticket.number,
            "device_id": self._loop.device.id,
            "host": self._loop.host,
            "pid": attempt.child.pid if attempt.child is not None else None,
            "ended_at_s": round(time.time(), 3),
            "state": attempt.final_state,
            "lease_bytes": attempt.lease_bytes,
            "used_before_bytes": attempt.used_before_bytes,
            "used_after_bytes": reading.used_bytes,
            "residue_bytes": release.residue_bytes,
            "back_s": round(release.back_s, 3),
            "reason": release.reason,
            "held_by": list(self._loop.releases.released(attempt, release, reading)),
        }
        self._write(lambda: self._loop.port.add_release(entry))

    # ---- RQ's books ----------------------------------------------------------------------------------

    def told(self, attempt: Attempt, conclusion: Conclusion | None) -> None:
        """A result is in the storage: close RQ's books on the job, and wake the coordinator."""
        attempt.conclusion = conclusion
        if attempt.execution_id is not None:
            self.finish_in_queue(attempt)

    def finish_in_queue(self, attempt: Attempt) -> None:
        """Close RQ's books; repeated until Redis takes it, while the liveness lease runs out by itself."""
        execution_id = attempt.execution_id
        assert execution_id is not None
        facts = attempt.conclusion.facts if attempt.conclusion is not None else None
        outcome, text, run_s = "stopped", attempt.final_state, 0.0
        if facts is not None:
            run_s = facts.run_s or 0.0
            ended_well = facts.end in (EndKind.COMPLETE, EndKind.PRUNED, EndKind.INFEASIBLE)
            outcome, text = ("finished", "") if ended_well else ("failed", facts.text)
        loop = self._loop

        def work() -> None:
            loop.forget_job(attempt.job_id)
            loop.port.finish(attempt.job_id, execution_id, outcome, text, run_s)

        self._write(work, repeat=True)

    def _write(self, work: Any, *, repeat: bool = False) -> None:
        self._pending += 1

        def done(_result: object, error: BaseException | None) -> None:
            self._pending -= 1
            if isinstance(error, TransientRedisError) and repeat and not (self._loop.draining and self._given_up()):
                self._pending += 1
                self._loop.timers.at(time.monotonic() + _RETRY_S, lambda: self._again(work))
            elif error is not None and not isinstance(error, TransientRedisError):
                _log.warning("the history or RQ's books could not be written: %s", error)

        self._loop.queue_lane.submit(work, done)

    def _again(self, work: Any) -> None:
        self._pending -= 1
        self._write(work, repeat=True)

    def _given_up(self) -> bool:
        """At shutdown without Redis nothing is waited for: leases there run out by themselves."""
        return not self._loop.attempts


def _allocator(attempt: Attempt) -> dict[str, int]:
    """Return what the trial's own allocator says, as far as it does."""
    found = {
        "cap_bytes": attempt.sample.cap_bytes or attempt.cap_bytes,
        "torch_reserved_bytes": attempt.sample.torch_reserved_bytes,
        "allocated_bytes": attempt.sample.allocated_bytes,
    }
    return {name: value for name, value in found.items() if value is not None}


def _unknown(loop: WorkerLoop) -> tuple[str, ...]:
    """Return what a GPU does not tell, by the names of a reading's fields. On the CPU nobody asks for those."""
    if loop.reading is None or loop.device.kind != "cuda":
        return ()
    # Utilisation is known from the second reading on; with it each worker would begin with a change.
    return tuple(name for name in loop.reading.unknown if name != "utilisation")


def _troubles(loop: WorkerLoop) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in (loop.supply.trouble, loop.spares.trouble) if text))


def _mps(loop: WorkerLoop) -> MpsState | None:
    """Return how MPS stands on the card; None where nobody asked for it."""
    if loop.mps is not None:
        return loop.mps.told()
    return MpsState("off", loop.mps_lacks) if loop.mps_lacks else None


def versions() -> dict[str, str]:
    """Return what a trial here would meet; packages are looked up, not imported."""
    found = {"python": platform.python_version(), "vrampool": __version__, "wire": str(WIRE_VERSION)}
    for package in ("optuna", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
