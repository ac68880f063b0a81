"""What the card shows while a way runs: memory in use and multiprocessors, read by NVML many times a second."""

from __future__ import annotations

import threading
import time
from statistics import mean
from typing import Any

import pynvml

from vrampool.units import GIB
from vrampool_worker.devices.gpm import Gpm

_MEMORY_EVERY_S = 0.02
_SM_EVERY_S = 0.25


class Card:
    """GPU 0."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._gpm = Gpm(pynvml, self._handle, None)
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self._handle))
        self.name = str(pynvml.nvmlDeviceGetName(self._handle))

    def used_gib(self) -> float:
        """Return what all processes have of it, without what the driver keeps for itself."""
        memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
        return float(memory.used) / GIB

    def free_gib(self) -> float:
        memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
        return float(memory.free) / GIB

    def sm_util(self) -> float | None:
        """Return the share of multiprocessors that worked since the last call, 0 to 1; None where it is not told."""
        try:
            return self._gpm.utilisation()
        except pynvml.NVMLError:
            return None


class CardWatch(threading.Thread):
    """Reads the card until it is stopped. Memory is counted from what was in use when it began.

    Args:
        card: The card; None where there is none: then nothing is read, and nothing told.
    """

    def __init__(self, card: Card | None) -> None:
        super().__init__(name="card-watch", daemon=True)
        self._card = card
        self._stopped = threading.Event()
        self._memory: list[tuple[float, float]] = []
        self._sm: list[tuple[float, float]] = []
        self._base_gib = card.used_gib() if card is not None else 0.0

    def run(self) -> None:
        card = self._card
        if card is None:
            return
        sm_at_s = 0.0
        while not self._stopped.wait(_MEMORY_EVERY_S):
            now_s = time.monotonic()
            self._memory.append((now_s, card.used_gib() - self._base_gib))
            if now_s - sm_at_s > _SM_EVERY_S:
                sm_at_s = now_s
                value = card.sm_util()
                if value is not None:
                    self._sm.append((now_s, value))

    def stop(self) -> None:
        self._stopped.set()
        if self.ident is not None:
            self.join(5)

    def facts(self, from_s: float, to_s: float) -> dict[str, Any]:
        """Return what was seen between two times of the monotonic clock; None for what was not."""
        memory = [gib for at_s, gib in list(self._memory) if from_s <= at_s <= to_s]
        sm = [share for at_s, share in list(self._sm) if from_s <= at_s <= to_s]
        return {
            "memory_mean_gib": round(mean(memory), 2) if memory else None,
            "memory_max_gib": round(max(memory), 2) if memory else None,
            "sm_util": round(mean(sm), 3) if sm else None,
        }
