"""Memory of running trials: caps, peaks, leases that are outgrown, what came back."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vrampool.messages import EndKind, Outcome
from vrampool.units import MIB, format_bytes
from vrampool_worker.attempts import Attempt, Scene, Stage
from vrampool_worker.devices import DeviceReading
from vrampool_worker.lease_moves import LeaseMoves

if TYPE_CHECKING:
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")

#: A trial that holds more than this share of its lease is given more before it must fail.
_GROW_AT = 0.9
#: A trial's peak is known when it has not grown for this part of its time. The first report alone says little where
#: each step is reported: an optimizer keeps its state from the first step on, and the second one holds it as well.
_SETTLED_SHARE = 1 / 3
_SETTLED_S = 0.5
_GREW_BYTES = 16 * MIB
#: What other programs hold below this is noise.
_WORTH_A_WORD_BYTES = 64 * MIB


class MemoryWatch:
    """Watches the memory of attempts. Only the main loop calls it."""

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop
        self._on_cpu = loop.device.kind == "cpu"
        self.moves = LeaseMoves(loop)

    def cap(self, attempt: Attempt) -> int:
        """Return what the child itself is held to: the lease less what the driver takes beside torch's allocator."""
        return self.cap_of(attempt.lease_at_end_bytes)

    def cap_of(self, lease_bytes: int) -> int:
        """Return the cap that goes with a lease."""
        return max(lease_bytes - self._loop.ledger.overhead_bytes, 0)

    def ceiling(self, attempt: Attempt) -> int | None:
        """Return what a cap on the CPU may ever be raised to: a limit once set lower there can never be moved back."""
        return self._loop.ledger.budget_bytes if self._on_cpu and not attempt.declared else None

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

    def scene(self, attempt: Attempt, outcome: Outcome) -> Scene:
        """Return who holds the device at this moment, as an attempt's objective has just ended.

        What an out-of-memory error says of the device is of the moment that counts; a reading may be older.
        """
        loop = self._loop
        others, held_bytes = [], self._own_bytes(attempt, outcome)
        for other in loop.attempts.values():
            if other is attempt or other.released:
                continue
            measured_bytes = loop.ledger.measured(other.lease_id)
            held_bytes += measured_bytes or 0
            of_its = "" if measured_bytes is None else f"{format_bytes(measured_bytes)} of its "
            others.append(f"{other.label} {of_its}lease of {format_bytes(other.lease_at_end_bytes)}")
        free_bytes = None
        if not attempt.mps:  # a client of MPS is told what is free of its own limit
            free_bytes = outcome.memory.get("free_bytes")
            if free_bytes is None:
                free_bytes = attempt.sample.oom_free_bytes
        if free_bytes is None and loop.reading is not None:
            free_bytes = loop.reading.free_bytes
        strangers_bytes = loop.ledger.strangers_bytes
        if free_bytes is not None and not self._on_cpu:
            driver_bytes = loop.ledger.budget_bytes - loop.ledger.grantable_bytes
            unexplained_bytes = loop.device.total_bytes - driver_bytes - free_bytes - held_bytes
            strangers_bytes = max(strangers_bytes, unexplained_bytes)
        if strangers_bytes > _WORTH_A_WORD_BYTES:
            others.append(f"other programs {format_bytes(strangers_bytes)}")
        return Scene(free_bytes, tuple(others))

    def _own_bytes(self, attempt: Attempt, outcome: Outcome) -> int:
        """Return what an attempt held when its objective ended."""
        in_use_bytes = outcome.memory.get("in_use_bytes")
        if in_use_bytes is None and attempt.sample.torch_reserved_bytes:
            in_use_bytes = attempt.sample.torch_reserved_bytes + self._loop.ledger.overhead_bytes
        return int(in_use_bytes or self._loop.ledger.measured(attempt.lease_id) or 0)

    def on_sample(self, attempt: Attempt) -> None:
        """A child has told its memory: beside the device's figure that shows what the driver takes for a process."""
        if not self._on_cpu and attempt.sample.torch_reserved_bytes:
            self._loop.ledger.learn_overhead(attempt.lease_id, attempt.sample.torch_reserved_bytes)
            if attempt.stage is Stage.RUNNING:
                self._watch_peak(attempt, time.monotonic())

    def on_reading(self, reading: DeviceReading, measured: Mapping[str, int | None], now_s: float) -> None:
        """The device was read."""
        self.moves.on_reading()
        for attempt in list(self._loop.attempts.values()):
            held = measured.get(attempt.lease_id)
            if held is not None and held > attempt.measured_peak_bytes:
                attempt.measured_peak_bytes = held
                attempt.measured_source = "pss" if self._on_cpu else "nvml"
            if attempt.stage is Stage.RUNNING:
                self._watch_peak(attempt, now_s)
                self._watch_lease(attempt, held, now_s)
            elif attempt.stage in (Stage.ENDED, Stage.TOLD) and not attempt.released:
                self._try_release(attempt, reading, now_s)
        self._end_trespasser()

    def _watch_peak(self, attempt: Attempt, now_s: float) -> None:
        """Take note of whether a trial still grows. Once it does not, it can do with less, and others learn of it."""
        peak_bytes = self.peak(attempt)
        if peak_bytes > attempt.peak_seen_bytes + _GREW_BYTES:
            attempt.peak_seen_bytes, attempt.peak_since_s, attempt.settled = peak_bytes, now_s, False
        elif not attempt.settled and attempt.started_at_s is not None:
            quiet_s = now_s - (attempt.peak_since_s or attempt.started_at_s)
            attempt.settled = quiet_s >= max(_SETTLED_S, _SETTLED_SHARE * (now_s - attempt.started_at_s))
            if attempt.settled and attempt.been_around:
                self._loop.wake()  # it can give back what it does not need
        if attempt.exclusive and attempt.reported and attempt.settled:
            self.moves.end_exclusivity(attempt)

    def _end_trespasser(self) -> None:
        """On a GPU end a trial that no cap holds, where what it takes beyond its lease is its neighbours'."""
        trespasser = self._loop.ledger.trespasser
        attempt = self._loop.attempts.get(trespasser) if trespasser is not None else None
        if attempt is None or attempt.stage is not Stage.RUNNING or attempt.ending is not None:
            return
        held_bytes = self._loop.ledger.measured(attempt.lease_id) or 0
        explained_bytes = (attempt.sample.torch_reserved_bytes or 0) + self._loop.ledger.overhead_bytes
        # Otherwise its cap holds, and what the driver takes beside it has grown.
        if held_bytes > explained_bytes + _WORTH_A_WORD_BYTES:
            held, lease = format_bytes(held_bytes), format_bytes(attempt.lease_at_end_bytes)
            text = (
                f"held {held} of the device, more than its lease of {lease}, while all together were beyond the "
                "budget; only torch's allocator is held to a cap"
            )
            self._loop.runner.end(attempt, EndKind.OOM, text, ask=False)

    def _watch_lease(self, attempt: Attempt, held: int | None, now_s: float) -> None:
        """Let a lease grow before it must fail; on the CPU stop a trial that has outgrown it."""
        loop = self._loop
        if held is None or attempt.child is None or attempt.ending is not None:
            return
        # One alone on its device has all there is; one with a cap of its own asks itself.
        may_grow = not (attempt.exclusive or attempt.declared or attempt.sample.cuda_initialized)
        if may_grow and attempt.move is None and held > _GROW_AT * attempt.lease_at_end_bytes:
            self.moves.grow(attempt, held, now_s)
        if self._on_cpu and loop.ledger.over(attempt.lease_id):
            text = f"held {format_bytes(held)}, more than its lease of {format_bytes(attempt.lease_at_end_bytes)}"
            loop.runner.end(attempt, EndKind.OOM, text, ask=False)

    def _try_release(self, attempt: Attempt, reading: DeviceReading, now_s: float) -> None:
        release = self._loop.ledger.settle(attempt.lease_id, reading, now_s)
        if release is not None:
            attempt.released = True
            self._loop.chronicle.released(attempt, release, reading)
            self._loop.wake()
            self._loop.runner.close_if_done(attempt)
