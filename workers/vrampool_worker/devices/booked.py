"""A GPU whose driver tells nothing: its size is given by hand, and it is managed by bookkeeping alone."""

from __future__ import annotations

import time
from collections.abc import Mapping

from vrampool_worker.devices.base import DeviceReading
from vrampool_worker.devices.environment import cuda_env


class BookedDevice:
    """A GPU named by what CUDA takes for it (an index in PCI order, or a UUID), with a size given by hand."""

    kind = "cuda"
    driver = ""
    default_slots = 16

    def __init__(self, visible: str, total_bytes: int, *, threads: int, env: Mapping[str, str]) -> None:
        self._visible = visible
        self._threads = threads
        self._env = env
        self.total_bytes = total_bytes
        self.id = f"gpu-{visible}" if visible.isdigit() else visible
        self.label = f"GPU {visible}"
        self.name = "GPU, size given by hand"

    def read(self) -> DeviceReading:
        unknown = ("used_bytes", "driver_reserved_bytes", "process_bytes", "utilisation", "busy")
        return DeviceReading(at_s=time.monotonic(), total_bytes=self.total_bytes, unknown=unknown)

    def measure(self, limits: Mapping[int, int | None]) -> dict[int, int | None]:
        return dict.fromkeys(limits)

    def child_env(self) -> dict[str, str]:
        return cuda_env(self._visible, self._threads, self._env)
