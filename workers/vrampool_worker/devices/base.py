"""What a device is to the rest of the worker: a protocol, and one frozen reading of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What a device said at one moment. Bytes; None where it does not tell, and then `unknown` names the field."""

    at_s: float  #: `time.monotonic()` just before the first question: what ended before it is in the figures
    total_bytes: int
    driver_reserved_bytes: int | None = None  #: held by the driver with no process alive
    used_bytes: int | None = None  #: by processes, the driver's part not in it; None: work by bookkeeping alone
    process_bytes: Mapping[int, int | None] = field(default_factory=dict)  #: by pid, a bonus: often empty in containers
    foreign_pids: bool = False  #: those pids may be of another namespace, the host's: compare them with nothing
    utilisation: float | None = None  #: share of the multiprocessors that worked since the last reading, 0 to 1
    busy: float | None = None  #: share of the time in which any kernel ran; says little from two processes on
    unknown: tuple[str, ...] = ()  #: names of the fields the device did not tell
    fault: str = ""  #: why the memory could not be read although this device tells it; such a reading is no news

    @property
    def free_bytes(self) -> int | None:
        """Return what is physically free, or None where the device does not tell."""
        if self.used_bytes is None:
            return None
        return max(0, self.total_bytes - (self.driver_reserved_bytes or 0) - self.used_bytes)


class Device(Protocol):
    """One device with its own memory budget: a GPU, a MIG instance, or the CPU with the host's memory.

    `read` and `measure` may block for as long as the driver likes, so only a `Sampler` calls them in a worker.
    A pid that a device names is only ever compared, never signalled: in a container it may be somebody else's.
    """

    @property
    def id(self) -> str:
        """Name it by something that survives a restart and is the same for every process: its UUID, or "cpu"."""

    @property
    def name(self) -> str:
        """Name it as its maker does."""

    @property
    def label(self) -> str:
        """Name it as sentences for people do: "GPU 0", "the CPU"."""

    @property
    def kind(self) -> str:
        """Say "cuda" or "cpu"."""

    @property
    def driver(self) -> str:
        """Return its driver's version; "" where there is none or it is not told."""

    @property
    def total_bytes(self) -> int:
        """Return its whole memory, of which a budget is taken."""

    @property
    def default_slots(self) -> int:
        """Return how many trials it takes at once unless a setting says otherwise."""

    def read(self) -> DeviceReading:
        """Read it now.

        Raises:
            DeviceLostError: the driver no longer has this device.
        """

    def measure(self, limits: Mapping[int, int | None]) -> dict[int, int | None]:
        """Measure trials.

        Args:
            limits: Pid of each trial's keeper, and bytes above which the figure must be exact (its lease; None: never).

        Returns:
            By the same pids, the bytes of all processes below the keeper; None where that is not known.
        """

    def child_env(self) -> dict[str, str]:
        """Return the variables that bind a child to this device; what the user has set himself is kept."""
