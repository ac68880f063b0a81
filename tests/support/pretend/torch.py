"""Stands in for torch on a fake card of `fake_nvml`: what its allocator reserves, and an overhead, are held there.

A child finds it by PYTHONPATH. It knows as much of torch as the child's runtime and the tests' objectives ask for:
memory that is reserved and allocated, a cap that is enforced, errors with torch's own words.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from typing import Any

from support.fake_nvml import hold

GIB = 1024**3
#: What the pretended driver takes for a process, beside the allocator.
OVERHEAD_BYTES = int(os.environ.get("PRETEND_OVERHEAD_BYTES", 620 * 1024**2))
TOTAL_BYTES = int(os.environ.get("PRETEND_TOTAL_BYTES", 24 * GIB))
__version__ = "0.0.pretend"
uint8 = "uint8"


class OutOfMemoryError(RuntimeError):
    pass


OutOfMemoryError.__module__ = "torch"


class _State:
    initialized = False
    fraction = 1.0
    reserved = allocated = max_reserved = max_allocated = ooms = 0
    queued: list[Any] = []


def _init() -> None:
    if not _State.initialized:
        _State.initialized = True
        hold(OVERHEAD_BYTES)
        for call in _State.queued:
            call()


def _take(size: int) -> None:
    _init()
    allowed = int(_State.fraction * TOTAL_BYTES)
    if _State.allocated + size > allowed:
        _State.ooms += 1
        raise OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size / 1024**2:.2f} MiB. GPU 0 has a total capacity of "
            f"{TOTAL_BYTES / GIB:.2f} GiB of which {TOTAL_BYTES / GIB:.2f} GiB is free. "
            f"{allowed / GIB:.2f} GiB allowed; "
        )
    _State.allocated += size
    _State.max_allocated = max(_State.max_allocated, _State.allocated)
    if _State.allocated > _State.reserved:
        _State.reserved = _State.allocated
        _State.max_reserved = max(_State.max_reserved, _State.reserved)
        hold(OVERHEAD_BYTES + _State.reserved)


def _give_back(size: int) -> None:
    _State.allocated -= size


class Block:
    """A tensor as far as memory goes. Sums and comparisons come out as those of ones do."""

    def __init__(self, size: int) -> None:
        _take(size)
        weakref.finalize(self, _give_back, size)
        self.size = size

    def fill_(self, value: int) -> Block:
        return self

    def __matmul__(self, other: Block) -> Block:
        return self

    def __eq__(self, other: object) -> Any:
        return types.SimpleNamespace(all=lambda: True)

    __hash__ = None  # type: ignore[assignment]


def empty(size: int, *, dtype: Any = None, device: str = "cpu") -> Block:
    return Block(size)


def ones(*shape: int, device: str = "cpu") -> Block:
    size = 4
    for length in shape:
        size *= length
    return Block(size)


def manual_seed(seed: int) -> None:
    pass


nn = types.SimpleNamespace(functional=types.SimpleNamespace(conv2d=lambda image, kernel: image))
backends = types.SimpleNamespace(
    cuda=types.SimpleNamespace(is_built=lambda: True), cudnn=types.SimpleNamespace(benchmark=False)
)


class _C:
    @staticmethod
    def _cuda_setMemoryFraction(fraction: float, device: int) -> None:
        if "PRETEND_NO_CAP" not in os.environ:
            _State.fraction = fraction

    @staticmethod
    def _cuda_getMemoryFraction(device: int) -> float:
        return _State.fraction


def _set_fraction(fraction: float, device: Any = None) -> None:
    _init()
    _State.fraction = fraction


def _empty_cache() -> None:
    _State.reserved = _State.allocated
    hold(OVERHEAD_BYTES + _State.reserved)


def _stats(device: Any = None) -> dict[str, Any]:
    def both(current: int, peak: int) -> dict[str, Any]:
        return {"all": {"current": current, "peak": peak}}

    return {
        "reserved_bytes": both(_State.reserved, _State.max_reserved),
        "allocated_bytes": both(_State.allocated, _State.max_allocated),
        "num_ooms": _State.ooms,
        "num_alloc_retries": 0,
    }


cuda = types.ModuleType("torch.cuda")
cuda.memory = types.ModuleType("torch.cuda.memory")  # type: ignore[attr-defined]
for _name, _value in {
    "OutOfMemoryError": OutOfMemoryError,
    "_lazy_call": lambda call: call() if _State.initialized else _State.queued.append(call),
    "init": _init,
    "_lazy_init": _init,
    "is_available": lambda: True,
    "is_initialized": lambda: _State.initialized,
    "device_count": lambda: 1,
    "mem_get_info": lambda device=None: (_init(), (TOTAL_BYTES, TOTAL_BYTES))[1],
    "memory_reserved": lambda device=None: _State.reserved,
    "memory_allocated": lambda device=None: _State.allocated,
    "empty_cache": _empty_cache,
    "synchronize": lambda device=None: None,
    "set_per_process_memory_fraction": _set_fraction,
    "get_per_process_memory_fraction": lambda device=None: _State.fraction,
    "reset_peak_memory_stats": lambda device=None: None,
    "reset_accumulated_memory_stats": lambda device=None: None,
    "memory_stats_as_nested_dict": _stats,
}.items():
    setattr(cuda, _name, _value)
for _name in ("set_per_process_memory_fraction", "reset_peak_memory_stats", "reset_accumulated_memory_stats"):
    setattr(cuda.memory, _name, getattr(cuda, _name))  # type: ignore[attr-defined]
sys.modules["torch.cuda"] = cuda
sys.modules["torch.cuda.memory"] = cuda.memory  # type: ignore[attr-defined]
