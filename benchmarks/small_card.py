"""A worker whose GPU 0 counts as a smaller card: a ballast process really holds the rest of it.

`python -m benchmarks.small_card CARD_BYTES BALLAST_BYTES`, with the settings of the environment.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Mapping
from typing import Any

from vrampool.queueing import connect
from vrampool.settings import load_settings
from vrampool_worker import rq_worker
from vrampool_worker.devices import Device, DeviceReading, find_devices


class SmallCard:
    """The real device, less the ballast."""

    def __init__(self, device: Device, card_bytes: int, ballast_bytes: int) -> None:
        self._device = device
        self._ballast_bytes = ballast_bytes
        self.total_bytes = card_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def read(self) -> DeviceReading:
        reading = self._device.read()
        used = None if reading.used_bytes is None else max(0, reading.used_bytes - self._ballast_bytes)
        # The driver's own part lies outside of what the ballast left free.
        return dataclasses.replace(reading, total_bytes=self.total_bytes, used_bytes=used, driver_reserved_bytes=0)

    def measure(self, limits: Mapping[int, int | None]) -> dict[int, int | None]:
        return self._device.measure(limits)


def main() -> None:
    """Run the worker until a signal ends it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = load_settings()
    card_bytes, ballast_bytes = int(sys.argv[1]), int(sys.argv[2])
    small = SmallCard(find_devices(settings)[0], card_bytes, ballast_bytes)
    rq_worker.find_devices = lambda *_: [small]
    connection = connect(settings.redis, role="worker")
    rq_worker.GpuWorker([settings.pool], connection=connection, settings=settings).work()


if __name__ == "__main__":
    main()
