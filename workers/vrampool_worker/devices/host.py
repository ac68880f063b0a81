"""The CPU as a device: its memory is the host's, as far as this process's control group allows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from vrampool.errors import DeviceLostError
from vrampool_worker.devices import cgroups
from vrampool_worker.devices.base import DeviceReading
from vrampool_worker.devices.environment import cpu_env
from vrampool_worker.devices.trees import TreeMemory


class HostDevice:
    """The CPU with host memory as its budget.

    Its total is the smaller of RAM and the control group's limit. What is used is what is not available, so the
    memory of other programs shows without anybody naming them.

    Args:
        env: The worker's environment.
        slots: Trials at once; None: as many as there are cores.
        root: Where ``proc`` and the mount points are looked for.
    """

    id = "cpu"
    kind = "cpu"
    driver = ""
    label = "the CPU"

    def __init__(self, env: Mapping[str, str], *, slots: int | None = None, root: Path = Path("/")) -> None:
        self._env = env
        self._root = root
        self._cores = cgroups.cores(root)
        self._slots = slots or self._cores
        self._trees = TreeMemory(proc=root / "proc")
        self.name = f"{_model(root)}, {self._cores} core{'s' if self._cores > 1 else ''}"
        limits_bytes = [item.limit_bytes for item in cgroups.memory_allowances(root)]
        self.total_bytes = min([self._meminfo("MemTotal"), *limits_bytes])

    @property
    def default_slots(self) -> int:
        return self._slots

    def read(self) -> DeviceReading:
        at_s = time.monotonic()
        room_bytes = [item.limit_bytes - item.used_bytes for item in cgroups.memory_allowances(self._root)]
        available_bytes = min([self._meminfo("MemAvailable"), *room_bytes])
        used_bytes = min(self.total_bytes, max(0, self.total_bytes - available_bytes))
        return DeviceReading(
            at_s=at_s,
            total_bytes=self.total_bytes,
            used_bytes=used_bytes,
            unknown=("driver_reserved_bytes", "process_bytes", "utilisation", "busy"),
        )

    def measure(self, limits: Mapping[int, int | None]) -> dict[int, int | None]:
        return self._trees.measure(limits)

    def child_env(self) -> dict[str, str]:
        return cpu_env(self._cores // self._slots, self._env)

    def _meminfo(self, key: str) -> int:
        try:
            for line in (self._root / "proc/meminfo").read_text().splitlines():
                if line.startswith(f"{key}:"):
                    return int(line.split()[1]) * 1024
        except (OSError, IndexError, ValueError) as error:
            raise DeviceLostError(f"cannot read the host's memory from /proc/meminfo: {error}") from None
        raise DeviceLostError(f"/proc/meminfo does not name {key}; give the host a mounted /proc")


def _model(root: Path) -> str:
    try:
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # no name is no reason not to run
    return "CPU"
