"""How busy a card's multiprocessors are, by its GPM counters (Hopper and later).

nvidia-smi's utilisation is 99 % from the second process on; these counters still tell whether one more trial gains.
"""

from __future__ import annotations

import time
from typing import Any

#: Counters over a shorter time than this are noise.
_SHORTEST_S = 0.1


class Gpm:
    """Two samples of one card, of which the newer becomes the older one.

    Args:
        library: The pynvml module, handed in so that `nvml` stays the only one to import it.
        card: Handle of the physical card.
        gpu_instance: Id of the MIG instance on it; None: the whole card.
    """

    def __init__(self, library: Any, card: Any, gpu_instance: int | None) -> None:
        self._library = library
        self._card = card
        self._gpu_instance = gpu_instance
        self._supported = self._is_supported()
        self._older: Any = None
        self._older_at_s = 0.0
        self._spare: Any = None

    def _is_supported(self) -> bool:
        try:
            return bool(self._library.nvmlGpmQueryDeviceSupport(self._card).isSupportedDevice)
        except self._library.NVMLError:
            return False  # also where the driver is older than these calls

    def utilisation(self) -> float | None:
        """Return the share of multiprocessors that worked since the last call, 0 to 1; None at first, or untold.

        Raises:
            NVMLError: the driver failed.
        """
        if not self._supported:
            return None
        now_s = time.monotonic()
        if self._older is not None and now_s - self._older_at_s < _SHORTEST_S:
            return None
        newer = self._sample()
        older, self._older, self._older_at_s = self._older, newer, now_s
        if older is None:
            return None
        self._spare = older
        return self._between(older, newer)

    def _sample(self) -> Any:
        # Kept until it is filled: where the driver refuses, every call would leave one behind.
        self._spare = self._spare or self._library.nvmlGpmSampleAlloc()
        if self._gpu_instance is None:
            filled = self._library.nvmlGpmSampleGet(self._card, self._spare)
        else:
            filled = self._library.nvmlGpmMigSampleGet(self._card, self._gpu_instance, self._spare)
        self._spare = None
        return filled

    def _between(self, older: Any, newer: Any) -> float | None:
        question = self._library.c_nvmlGpmMetricsGet_t()
        question.version = self._library.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics = 1
        question.sample1, question.sample2 = older, newer
        question.metrics[0].metricId = self._library.NVML_GPM_METRIC_SM_UTIL
        answer = self._library.nvmlGpmMetricsGet(question).metrics[0]
        if answer.nvmlReturn != self._library.NVML_SUCCESS:
            return None
        return min(1.0, max(0.0, float(answer.value) / 100))
