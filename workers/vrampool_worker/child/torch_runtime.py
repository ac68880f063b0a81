"""torch in a trial's process: the cap on its allocator, and what it holds. Imported only where torch is.

Why the cap holds before any CUDA work of the user's, without creating a context he may not want:

- torch creates its CUDA state once, in `torch.cuda._lazy_init`; every tensor on a GPU comes after it, and C++ code that
  needs CUDA calls it too. Calls queued with `torch.cuda._lazy_call` run inside it, when the allocator exists and before
  anything can be allocated from it. The cap is set there. (Setting it earlier, by
  `set_per_process_memory_fraction`, would itself create the context: 0.6 GiB, and a fork of the objective could not use
  CUDA any more.)
- If CUDA is in use already when this is called, the cap is set at once.
- This runs at hand-over where torch is preloaded, else at the end of torch's own import (`import_hooks`): in both cases
  before the user's first line that could use it. As a second line, each sample reads the fraction back and sets it
  again if something raised it.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from vrampool.messages import ChildFrame, MemorySample
from vrampool_worker.child.allocator_guard import guard_allocator
from vrampool_worker.child.growing import ANSWER_S, Growing
from vrampool_worker.child.oom_log import OomLog

Send = Callable[..., None]
#: Called with the cap asked for, the one in force, the bytes given back for it, and what the allocator holds.
Answer = Callable[[int, int, int, int | None], None]
#: For so long after its first use of the device a trial is sampled that often: it comes to its peak then.
_YOUNG_S = 3.0
_YOUNG_PAUSE_S = 0.1


class TorchRuntime:
    """Cap and samples of torch's CUDA allocator in this process.

    Everything that may wait for the device is done by the sampling thread; `recap` only leaves word for it.
    """

    def __init__(self, *, cap_bytes: int | None, total_bytes: int, interval_s: float, send: Send) -> None:
        self._torch: Any = sys.modules["torch"]
        self._cap_bytes = cap_bytes
        self._total_bytes = total_bytes
        self._context_s: float | None = None
        self._user_fraction = 1.0  #: what the objective set for itself, if that is less
        self._applied = False
        self._interval_s = interval_s
        self._send = send
        self._wanted: tuple[int, Answer] | None = None
        self._growing = Growing(lambda held, cap: send(ChildFrame.GROW, held_bytes=held, cap_bytes=cap))
        self._ooms = OomLog(self._torch)
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._max_reserved_bytes = 0
        self._max_allocated_bytes = 0
        self._ooms_before = 0
        self._retries_before = 0
        self._forget_peak = False
        self._first_at_s: float | None = None  #: when it was first seen to have a context

    def begin(self) -> None:
        """Arm the cap, guard it, and start sampling."""
        self._guard()
        if self._torch.backends.cuda.is_built():
            self._torch.cuda._lazy_call(self._apply)
        threading.Thread(target=self._watch, name="vrampool-sampler", daemon=True).start()

    @property
    def active(self) -> bool:
        """Whether this process has a CUDA context."""
        return bool(self._torch.cuda.is_initialized())

    # ---- the cap -------------------------------------------------------------------------------------

    def _device_bytes(self) -> int:
        # The runtime's own total is a little less than NVML's, and the fraction is taken of it.
        return int(self._torch.cuda.mem_get_info(0)[1]) or self._total_bytes

    def _fraction(self, device_bytes: int) -> float:
        own = 1.0 if self._cap_bytes is None else min(1.0, self._cap_bytes / device_bytes)
        return min(own, self._user_fraction)

    def _apply(self) -> None:
        """Set the cap. Runs inside torch's initialisation, where an exception would become the objective's."""
        try:
            self._set(self._fraction(self._device_bytes()))
            self._applied = True
            self._ooms.attach()
        except Exception as error:
            print(f"vrampool: the memory cap could not be set: {error}", file=sys.stderr)
        self._wake.set()

    def _set(self, fraction: float) -> None:
        for device in range(self._torch.cuda.device_count()):
            self._torch._C._cuda_setMemoryFraction(fraction, device)

    def cap_bytes(self) -> int | None:
        """Return the cap in force, read back from torch where it can tell; None: there is none."""
        if self._cap_bytes is None and self._user_fraction >= 1.0:
            return None
        if not self._applied or not self.active:
            return None if self.active else self._cap_bytes
        read = getattr(self._torch._C, "_cuda_getMemoryFraction", None)
        device_bytes = self._device_bytes()
        fraction = self._fraction(device_bytes) if read is None else float(read(0))
        return int(fraction * device_bytes)

    def _keep_cap(self) -> None:
        """Set the fraction again if it is not what it should be: C++ code may have begun CUDA, or raised it."""
        read = getattr(self._torch._C, "_cuda_getMemoryFraction", None)
        wanted = self._fraction(self._device_bytes())
        if not self._applied or (read is not None and float(read(0)) > wanted * 1.001):
            self._apply()

    def _guard(self) -> None:
        """Replace what could raise the cap, and what would make peaks and counts forget."""
        cuda = self._torch.cuda
        self._replace("set_per_process_memory_fraction", self._guarded_fraction)
        self._replace("_lazy_init", self._timed_init)
        for name in ("reset_peak_memory_stats", "reset_accumulated_memory_stats"):
            if hasattr(cuda, name):
                self._replace(name, functools.partial(self._reset_after_sample, name))
        guard_allocator(self._torch, self._apply_again)

    def _timed_init(self, original: Callable[[], None]) -> None:
        """Stand in for torch's, which every first use of a GPU calls: what it takes is part of what a trial costs."""
        if self.active:
            return original()
        began_s = time.perf_counter()
        original()
        if self.active:
            self._context_s = round(time.perf_counter() - began_s, 4)
        return None

    def _apply_again(self) -> None:
        if self.active:
            with self._lock:
                self._apply()

    def _replace(self, name: str, call: Callable[..., Any]) -> None:
        cuda = self._torch.cuda
        original = getattr(cuda, name)

        @functools.wraps(original)
        def replacement(*arguments: Any, **keywords: Any) -> Any:
            return call(original, *arguments, **keywords)

        for module in (cuda, cuda.memory):
            if getattr(module, name, None) is original:
                setattr(module, name, replacement)

    def _guarded_fraction(self, original: Callable[..., None], fraction: float, device: Any = None) -> None:
        """Stand in for torch's: less than the lease is the objective's own business, more is refused with a warning."""
        with self._lock:
            allowed = 1.0 if self._cap_bytes is None else min(1.0, self._cap_bytes / self._total_or_device())
            if isinstance(fraction, float) and fraction > allowed:
                warnings.warn(
                    f"set_per_process_memory_fraction({fraction}) is more than this trial's lease: {allowed:.4f} holds",
                    stacklevel=3,
                )
                fraction = allowed
            original(fraction, device)
            self._user_fraction = float(fraction) if fraction < allowed else 1.0
            self._applied = True

    def _total_or_device(self) -> int:
        self._torch.cuda.init()  # the call that is guarded does so anyway
        return self._device_bytes()

    def _reset_after_sample(self, name: str, original: Callable[..., Any], device: Any = None) -> Any:
        if self.active:
            stats = self._read()
            if name == "reset_accumulated_memory_stats":
                self._ooms_before += int(stats.get("num_ooms", 0))
                self._retries_before += int(stats.get("num_alloc_retries", 0))
            elif self._forget_peak:
                self._forget_peak = False
                self._max_reserved_bytes = self._max_allocated_bytes = 0
        return original(device)

    # ---- recap and samples ---------------------------------------------------------------------------

    def recap(self, cap_bytes: int, answer: Answer) -> None:
        """Leave word for the sampling thread to change the cap; it calls `answer` when that is done."""
        self._wanted = (cap_bytes, answer)
        self._wake.set()

    def _recap(self, asked_bytes: int, answer: Answer) -> None:
        cap_bytes, freed_bytes = asked_bytes, 0
        held_bytes: int | None = None
        with self._lock:
            if self.active:
                if cap_bytes < (self._cap_bytes or self._total_bytes):
                    before = int(self._torch.cuda.memory_reserved(0))
                    self._torch.cuda.empty_cache()
                    held_bytes = int(self._torch.cuda.memory_reserved(0))
                    freed_bytes = max(0, before - held_bytes)
                    cap_bytes = max(cap_bytes, held_bytes)  # it may have grown since the worker looked
                self._cap_bytes = cap_bytes
                self._apply()
                held_bytes = int(self._torch.cuda.memory_reserved(0))
            else:
                self._cap_bytes = cap_bytes
        answer(asked_bytes, self.cap_bytes() or cap_bytes, freed_bytes, held_bytes)
        self._growing.granted()

    def ask_if_short(self) -> None:
        """Ask for a larger cap if this one is nearly reached, and wait a moment for it. For the training thread."""
        if self._cap_bytes is not None and self.active:
            self._growing.look(int(self._torch.cuda.memory_reserved(0)), self._cap_bytes, wait_s=ANSWER_S)

    def stay(self) -> None:
        """There is no more to be had."""
        self._growing.refused()

    def _read(self) -> dict[str, Any]:
        stats: dict[str, Any] = self._torch.cuda.memory_stats_as_nested_dict(0)
        self._max_reserved_bytes = max(self._max_reserved_bytes, _amount(stats, "reserved_bytes", "peak"))
        self._max_allocated_bytes = max(self._max_allocated_bytes, _amount(stats, "allocated_bytes", "peak"))
        return stats

    def sample(self) -> MemorySample:
        """Read the allocator. Never creates a context: before the first use of the GPU all is zero."""
        if not self.active:
            return MemorySample(cap_bytes=self.cap_bytes())
        stats = self._read()
        return MemorySample(
            allocated_bytes=_amount(stats, "allocated_bytes", "current"),
            torch_reserved_bytes=_amount(stats, "reserved_bytes", "current"),
            max_torch_reserved_bytes=self._max_reserved_bytes,
            max_allocated_bytes=self._max_allocated_bytes,
            num_ooms=self._ooms_before + int(stats.get("num_ooms", 0)),
            num_ooms_raised=self._ooms.raised,
            num_alloc_retries=self._retries_before + int(stats.get("num_alloc_retries", 0)),
            cap_bytes=self.cap_bytes(),
            cuda_initialized=True,
            context_s=self._context_s,
            **self._ooms.last(),
        )

    def note_ooms_handled(self, handled: int, count: int) -> int:
        """Take note that a helper caught some more on purpose; return how many the allocator knows of in all.

        A library's own error is none of the allocator's: counted, it would hide one that comes later. So would those
        that a library below Python met beside it.
        """
        ooms = self._ooms_before + int(self._read().get("num_ooms", 0)) if self.active else 0
        known = min(handled + count, ooms, ooms if self._ooms.raised is None else self._ooms.raised)
        self._ooms.forget(known - handled)
        self._forget_peak = True  # the next reset of the peak is a real one: what led to it was undone
        return known

    def _watch(self) -> None:
        while True:
            self._wake.wait(self._pause_s())
            self._wake.clear()
            try:
                self._turn()
            except Exception as error:  # a device that is lost: the objective gets its own error
                print(f"vrampool: memory cannot be read: {error}", file=sys.stderr)
                return

    def _pause_s(self) -> float:
        """Return the time until the next sample: others wait for a trial's first seconds to show its peak."""
        young = self._first_at_s is not None and time.monotonic() - self._first_at_s < _YOUNG_S
        return min(self._interval_s, _YOUNG_PAUSE_S) if young else self._interval_s

    def _turn(self) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._recap(*wanted)
        if self.active:
            self._first_at_s = self._first_at_s or time.monotonic()
            with self._lock:
                self._keep_cap()
            sample = self.sample()
            self._send(ChildFrame.SAMPLE, **sample.to_json())
            if self._cap_bytes is not None:
                self._growing.look(sample.torch_reserved_bytes or 0, self._cap_bytes)


def _amount(stats: dict[str, Any], kind: str, which: str) -> int:
    return int(stats.get(kind, {}).get("all", {}).get(which, 0))
