"""Reserved against allocated: memory that torch keeps from everybody although the trial does not use it. Pure.

What a trial holds on its device is what torch's allocator has reserved; what its tensors need is less. A wide gap that
lasts is room that another trial could have, and each of its causes is mended by another setting: so the hint names it.
"""

from __future__ import annotations

from collections.abc import Mapping

from vrampool.messages import MemorySample
from vrampool.units import MIB, format_bytes

#: More than this share of what is reserved is not in use,
GAP_SHARE = 0.5
#: and at least so much: less is not worth a word,
GAP_LEAST_BYTES = 512 * MIB
#: for so long, and seen so often. Within a step allocated memory rises and falls: samples meet each part of it.
GAP_S = 30.0
GAP_SAMPLES = 20
#: If tensors never needed more than this share of what is reserved, the rest was never of use: it is fragmented.
_FRAGMENTED_SHARE = 0.7
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def allocator_options(*environments: Mapping[str, str]) -> str:
    """Return the allocator's options as a trial has them; of several environments the first that sets them counts."""
    return next((env[name] for env in environments for name in _VARIABLES if env.get(name)), "")


class GapWatch:
    """Watches one trial's samples, and has at most one hint for it.

    Args:
        options: Value of PYTORCH_CUDA_ALLOC_CONF for the trial.
    """

    def __init__(self, options: str) -> None:
        self._options = options.replace(" ", "")
        self._told = False
        self._since_s: float | None = None
        self._samples = 0
        self._most_allocated_bytes = 0
        self._least_reserved_bytes = 0

    def note(self, sample: MemorySample, now_s: float) -> str:
        """Take in a sample; return the hint when it is due, else nothing."""
        allocated_bytes, reserved_bytes = sample.allocated_bytes, sample.torch_reserved_bytes
        if self._told or allocated_bytes is None or not reserved_bytes:
            return ""
        if self._since_s is None or not self._go_on(allocated_bytes, reserved_bytes):
            self._since_s, self._samples = now_s, 0
            self._most_allocated_bytes, self._least_reserved_bytes = allocated_bytes, reserved_bytes
        self._samples += 1
        gap_bytes = self._least_reserved_bytes - self._most_allocated_bytes
        if gap_bytes < GAP_LEAST_BYTES or gap_bytes <= GAP_SHARE * self._least_reserved_bytes:
            self._since_s = None
            return ""
        if now_s - self._since_s < GAP_S or self._samples < GAP_SAMPLES:
            return ""
        self._told = True
        return self._hint(sample.max_allocated_bytes or self._most_allocated_bytes, now_s - self._since_s)

    def _go_on(self, allocated_bytes: int, reserved_bytes: int) -> bool:
        """Take a sample into the stretch that is being watched; False when the gap closes with it."""
        self._most_allocated_bytes = max(self._most_allocated_bytes, allocated_bytes)
        self._least_reserved_bytes = min(self._least_reserved_bytes, reserved_bytes)
        gap_bytes = self._least_reserved_bytes - self._most_allocated_bytes
        return gap_bytes > GAP_SHARE * self._least_reserved_bytes

    def _hint(self, peak_bytes: int, seconds: float) -> str:
        seen = (
            f"for {seconds:.0f} s torch kept {format_bytes(self._least_reserved_bytes)} reserved of which at most "
            f"{format_bytes(self._most_allocated_bytes)} were in use"
        )
        if peak_bytes >= _FRAGMENTED_SHARE * self._least_reserved_bytes:
            return (
                f"{seen}: the cache of an earlier peak of {format_bytes(peak_bytes)} is kept; call "
                "torch.cuda.empty_cache() when that phase is over, for example between training and evaluation"
            )
        fragmented = f"{seen}, and never more than {format_bytes(peak_bytes)}: it is fragmented"
        if "expandable_segments:True" not in self._options:
            return (
                f"{fragmented}; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in env=, or "
                "max_split_size_mb:128 where that is not supported"
            )
        return (
            f"{fragmented} although expandable_segments is on; let sizes vary less (pad inputs to a few lengths, drop "
            "the last batch), or set garbage_collection_threshold:0.6 in PYTORCH_CUDA_ALLOC_CONF"
        )
