"""What the driver holds for a process beyond torch's allocator: context, kernels, library handles.

A cap is set on torch's allocator, and a lease is of the device: between them lies the overhead. On an H200 it was
0.70 to 0.76 GiB for every model tried, so one figure for a device is enough. It is learned from the first trials, and
kept for whoever comes later to a device of that kind, with that driver and that torch.
"""

from __future__ import annotations

from vrampool.units import MIB

#: Taken until the device has shown its own.
FIRST_BYTES = 780 * MIB
#: Outside of this a difference is no overhead but a mistake: figures of different moments, or somebody else's memory.
_LEAST_BYTES = 128 * MIB
_MOST_BYTES = 2048 * MIB


class Overhead:
    """The overhead of processes on one device: the largest that was seen."""

    def __init__(self) -> None:
        self.seen_bytes: int | None = None  #: None: none was seen yet

    @property
    def learned_bytes(self) -> int:
        return FIRST_BYTES if self.seen_bytes is None else self.seen_bytes

    def calibrate(self, overhead_bytes: int) -> None:
        """Begin with what others have seen; a figure that can be no overhead is left out."""
        if _LEAST_BYTES <= overhead_bytes <= _MOST_BYTES:
            self.seen_bytes = max(self.seen_bytes or 0, overhead_bytes)

    def learn(self, held_bytes: int, torch_reserved_bytes: int) -> None:
        """Learn from what a process held on the device while torch's allocator held so much of it."""
        self.calibrate(held_bytes - torch_reserved_bytes)
