"""Memory of running trials: peaks, ends of exclusivity, leases that grow, what came back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vrampool.messages import EndKind
from vrampool.units import format_bytes
from vrampool_worker.attempts import Attempt, Stage
from vrampool_worker.devices import DeviceReading

if TYPE_CHECKING:
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")

#: A trial that holds more than this share of its lease is given more before it must fail,
_GROW_AT = 0.9
#: so much of what it holds now.
_GROW_TO = 1.25


class MemoryWatch:
    """Watches the memory of attempts. Only the main loop calls it."""

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop
        self._on_cpu = loop.device.kind == "cpu"

    def cap(self, attempt: Attempt) -> int:
        """Return what the child itself is held to: the lease less what the driver takes beside torch's allocator."""
        loop = self._loop
        if not self._on_cpu:
            return max(attempt.lease_at_end_bytes - loop.ledger.overhead_bytes, 0)
        # A lease that may yet grow must not be a wall that cannot be moved back: then the readings watch it.
        return attempt.lease_bytes if _declared(attempt) else loop.ledger.budget_bytes

    def peak(self, attempt: Attempt) -> int:
        """Return the most an attempt was seen to hold so far, in bytes; 0 when nothing has seen it yet."""
        if not self._on_cpu and attempt.sample.max_torch_reserved_bytes:
            return attempt.sample.max_torch_reserved_bytes + self._loop.ledger.overhead_bytes
        return attempt.measured_peak_bytes

    def fill_in(self, attempt: Attempt, measured_bytes: int | None) -> int | None:
        """Return what an attempt holds: as the device says, or as its own allocator does where the device does not."""
        if measured_bytes is None and not self._on_cpu and attempt.sample.torch_reserved_bytes:
            return attempt.sample.torch_reserved_bytes + self._loop.ledger.overhead_bytes
        return measured_bytes

    def on_sample(self, attempt: Attempt) -> None:
        """A child has told its memory: beside the device's figure that shows what the driver takes for a process."""
        if not self._on_cpu and attempt.sample.torch_reserved_bytes:
            self._loop.ledger.learn_overhead(attempt.lease_id, attempt.sample.torch_reserved_bytes)

    def on_reading(self, reading: DeviceReading, measured: Mapping[str, int | None], now_s: float) -> None:
        """The device was read."""
        for attempt in list(self._loop.attempts.values()):
            held = measured.get(attempt.lease_id)
            if held is not None and held > attempt.measured_peak_bytes:
                attempt.measured_peak_bytes = held
                attempt.measured_source = "pss" if self._on_cpu else "nvml"
            if attempt.stage is Stage.RUNNING:
                if attempt.exclusive and attempt.reported:
                    self._end_exclusivity(attempt, now_s)
                self._watch_lease(attempt, held, now_s)
            elif attempt.stage in (Stage.ENDED, Stage.TOLD) and not attempt.released:
                self._try_release(attempt, reading, now_s)

    def _end_exclusivity(self, attempt: Attempt, now_s: float) -> None:
        decision = self._loop.ledger.report_first(attempt.lease_id, self.peak(attempt) or None, now_s)
        if not decision.granted:
            return  # its memory is not known yet: at the next reading, perhaps
        attempt.exclusive = False
        self._set_lease(attempt, decision.lease_bytes)
        _log.info("%s: %s", attempt.label, decision.reason)
        self._loop.wake()

    def _watch_lease(self, attempt: Attempt, held: int | None, now_s: float) -> None:
        """Let a lease grow before it must fail; on the CPU stop a trial that has outgrown it."""
        loop = self._loop
        if held is None or attempt.child is None or attempt.ending is not None:
            return
        may_grow = not (attempt.exclusive or _declared(attempt))  # one alone on its device has all there is
        if may_grow and held > _GROW_AT * attempt.lease_at_end_bytes:
            decision = loop.ledger.grow(attempt.lease_id, int(held * _GROW_TO), now_s)
            if decision.lease_bytes != attempt.lease_at_end_bytes:
                _log.info("%s: %s", attempt.label, decision.reason)
                self._set_lease(attempt, decision.lease_bytes)
        if self._on_cpu and loop.ledger.over(attempt.lease_id):
            text = f"held {format_bytes(held)}, more than its lease of {format_bytes(attempt.lease_at_end_bytes)}"
            loop.runner.end(attempt, EndKind.OOM, text, ask=False)

    def _set_lease(self, attempt: Attempt, lease_bytes: int) -> None:
        attempt.lease_at_end_bytes = lease_bytes
        if not attempt.exclusive:
            attempt.lease_bytes = max(attempt.lease_bytes, lease_bytes)
        self._loop.keepers_changed()
        if not self._on_cpu and attempt.child is not None:
            attempt.child.recap(self.cap(attempt))

    def _try_release(self, attempt: Attempt, reading: DeviceReading, now_s: float) -> None:
        release = self._loop.ledger.settle(attempt.lease_id, reading, now_s)
        if release is not None:
            attempt.released = True
            self._loop.chronicle.released(attempt, release, reading)
            self._loop.wake()
            self._loop.runner.close_if_done(attempt)


def _declared(attempt: Attempt) -> bool:
    """True where the user has said what each trial needs: his figure is kept to."""
    return attempt.spec is not None and attempt.spec.vram != "auto"
