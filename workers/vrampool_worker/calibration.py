"""The overhead of a device, learned once for its kind, driver and torch, and kept in the pool for later workers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vrampool.queueing import Overheads, TransientRedisError
from vrampool.units import MIB, format_bytes
from vrampool_worker.devices import Device

if TYPE_CHECKING:
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")

#: A figure is kept anew only when it has grown by more than this.
NEWS_BYTES = 4 * MIB


def key_of(device: Device, torch_version: str | None) -> str | None:
    """Return what the overhead of a device depends on; None where there is none to learn: the CPU, or no torch."""
    if device.kind != "cuda" or torch_version is None:
        return None
    return Overheads.key(device.name, device.driver, torch_version)


class Calibration:
    """Begins with what workers before this one have learned, and keeps what its own trials show. For the main loop."""

    def __init__(self, loop: WorkerLoop, torch_version: str | None) -> None:
        self._loop = loop
        self._key = key_of(loop.device, torch_version)
        self._kept_bytes = 0

    def begin(self) -> None:
        """Read what is known. Blocks, so before the loop runs."""
        if self._key is None:
            return
        try:
            known_bytes = self._loop.port.read_overhead(self._key)
        except TransientRedisError as error:  # it is learned again
            _log.warning("the overhead that was learned before is not known: %s", error)
            return
        if known_bytes is not None:
            self._kept_bytes = known_bytes
            self._loop.ledger.overhead.calibrate(known_bytes)
            _log.info("a process here takes %s beside torch's allocator, as learned before", format_bytes(known_bytes))

    def look(self) -> None:
        """Keep the overhead if it has grown since."""
        key, seen_bytes = self._key, self._loop.ledger.overhead.seen_bytes
        if key is None or seen_bytes is None or seen_bytes <= self._kept_bytes + NEWS_BYTES:
            return
        before_bytes, self._kept_bytes = self._kept_bytes, seen_bytes

        def done(_result: object, error: BaseException | None) -> None:
            if error is not None:  # Redis is away: at a later look
                self._kept_bytes = before_bytes

        self._loop.queue_lane.submit(lambda: self._loop.port.keep_overhead(key, seen_bytes), done)
