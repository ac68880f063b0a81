"""A torch whose GPU is a card of `fake_nvml`: what its allocator reserves is in use there, beside a context.

A pool whose children find this folder in PYTHONPATH has trials that allocate, reach their caps, meet a full card, give
back their caches and count their steps, without a GPU::

    import torch
    block = torch.cuda.take(3 * GIB)      # or torch.OutOfMemoryError, with the words of the real one
    torch.cuda.drop(block)                # stays in the allocator's cache
    torch.optim.step()                    # counted by vrampool.training
"""

from __future__ import annotations

import os
import sys
import threading
import types
from pathlib import Path

GIB = 1024**3
MIB = 1024**2
__version__ = "2.99.fake"
#: What the driver takes for a process beside the allocator.
CONTEXT_BYTES = 600 * MIB


class OutOfMemoryError(RuntimeError):
    pass


OutOfMemoryError.__module__ = "torch"


def _lives(pid):
    """A process that waits to be reaped has given its memory back already."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class _Card:
    """The card that CUDA_VISIBLE_DEVICES names, as the fake driver keeps it."""

    def __init__(self) -> None:
        self.uuid = os.environ["CUDA_VISIBLE_DEVICES"]
        self._state = Path(os.environ["FAKE_NVML_STATE"])
        words = next(line.split() for line in self._lines() if line.startswith("card ") and self.uuid in line)
        self._index, self.total, self._reserved = words[1], int(words[3]), int(words[4])

    def _lines(self):
        for path in [self._state, *Path(f"{self._state}.d").glob("[!.]*")]:
            try:
                yield from path.read_text().splitlines()
            except FileNotFoundError:  # its process ended just now
                continue

    def free(self) -> int:
        """What neither the driver, nor others, nor this process hold."""
        used = self._reserved
        for line in self._lines():
            kind, *words = line.split()
            here = kind in ("used", "proc", "ghost") and words[0] in (self.uuid, self._index, "*")
            if here and (kind != "proc" or _lives(words[1])):
                used += max(0, int(words[-1]))
        return max(0, self.total - used)

    def hold(self, size: int) -> None:
        place = Path(f"{self._state}.d") / str(os.getpid())
        writing = place.with_name(f".{place.name}")
        writing.write_text(f"proc {self.uuid} {os.getpid()} {size}\n")
        writing.replace(place)


class _C:
    """The allocator. `fraction` is a cap on what it reserves, as the real one's is."""

    fraction = 1.0
    reserved = allocated = max_reserved = max_allocated = ooms = retries = 0
    observers = []
    emptied = 0

    @classmethod
    def _cuda_setMemoryFraction(cls, fraction, device):
        cls.fraction = fraction

    @classmethod
    def _cuda_getMemoryFraction(cls, device):
        return cls.fraction

    @classmethod
    def _cuda_attach_out_of_memory_observer(cls, observer):
        cls.observers.append(observer)


_lock = threading.RLock()
_queued = []
_card = None


def _init():
    global _card
    with _lock:
        if _card is None:
            _card = _Card()
            for call in _queued:
                call()
            _card.hold(CONTEXT_BYTES)
    return _card


def _reserve(size):
    _C.reserved = size
    _C.max_reserved = max(_C.max_reserved, size)
    _card.hold(CONTEXT_BYTES + size)


def try_workspace(size):
    """Allocate as a library below Python does: a refusal is counted, and dealt with there; say whether it was had."""
    try:
        take(size, OutOfMemory=_Below)
    except _Below:
        return False
    drop(size)
    return True


class _Below(Exception):
    """Stands for C++'s own exception."""


def take(size, OutOfMemory=OutOfMemoryError):
    """Allocate: out of the cache, else from the card."""
    card = _init()
    with _lock:
        allowed = int(_C.fraction * card.total)
        more = max(0, _C.allocated + size - _C.reserved)
        if _C.reserved + more > allowed and _C.reserved > _C.allocated:
            _C.retries += 1
            _reserve(_C.allocated)
            more = size
        free = card.free()
        if _C.reserved + more > allowed or more > free:
            _C.ooms += 1
            for observer in _C.observers:
                observer(0, size, allowed, free)
            capped = f"{allowed / GIB:.2f} GiB allowed; " if _C.fraction < 1 else ""
            raise OutOfMemory(
                f"CUDA out of memory. Tried to allocate {size / MIB:.2f} MiB. GPU 0 has a total capacity of "
                f"{card.total / GIB:.2f} GiB of which {free / MIB:.2f} MiB is free. Including non-PyTorch memory, this "
                f"process has {(_C.reserved + CONTEXT_BYTES) / MIB:.2f} MiB memory in use. {capped}"
            )
        _C.allocated += size
        _C.max_allocated = max(_C.max_allocated, _C.allocated)
        if more:
            _reserve(_C.reserved + more)
    return size


def drop(size):
    with _lock:
        _C.allocated -= size


def _empty_cache():
    with _lock:
        _C.emptied += 1
        if _card is not None:
            _reserve(_C.allocated)


def _stats(device=None):
    return {
        "reserved_bytes": {"all": {"current": _C.reserved, "peak": _C.max_reserved}},
        "allocated_bytes": {"all": {"current": _C.allocated, "peak": _C.max_allocated}},
        "num_ooms": _C.ooms,
        "num_alloc_retries": _C.retries,
    }


def _reset_peak(device=None):
    _C.max_reserved, _C.max_allocated = _C.reserved, _C.allocated


def _module(name, **members):
    made = sys.modules[name] = types.ModuleType(name)
    for key, value in members.items():
        setattr(made, key, value)
    return made


def manual_seed(seed):
    pass


def set_num_threads(count):
    pass


memory = _module(
    "torch.cuda.memory",
    set_per_process_memory_fraction=lambda fraction, device=None: (_init(), _C._cuda_setMemoryFraction(fraction, 0)),
    reset_peak_memory_stats=_reset_peak,
    reset_accumulated_memory_stats=lambda device=None: None,
)
cuda = _module(
    "torch.cuda",
    memory=memory,
    OutOfMemoryError=OutOfMemoryError,
    take=take,
    try_workspace=try_workspace,
    drop=drop,
    is_available=lambda: True,
    is_initialized=lambda: _card is not None,
    init=_init,
    _lazy_init=_init,
    _lazy_call=lambda call: call() if _card is not None else _queued.append(call),
    device_count=lambda: 1,
    mem_get_info=lambda device=None: (_init().free(), _init().total),
    memory_reserved=lambda device=None: _C.reserved,
    memory_allocated=lambda device=None: _C.allocated,
    memory_stats=lambda device=None: {"num_ooms": _C.ooms},
    memory_stats_as_nested_dict=_stats,
    empty_cache=_empty_cache,
    synchronize=lambda device=None: None,
    ipc_collect=lambda: None,
    get_rng_state=lambda: 0,
    set_rng_state=lambda state: None,
    **{name: getattr(memory, name) for name in ("set_per_process_memory_fraction", "reset_peak_memory_stats")},
    reset_accumulated_memory_stats=memory.reset_accumulated_memory_stats,
)
get_rng_state, set_rng_state = cuda.get_rng_state, cuda.set_rng_state
backends = types.SimpleNamespace(
    cuda=types.SimpleNamespace(is_built=lambda: True), cudnn=types.SimpleNamespace(benchmark=False)
)

_hooks = []


class _Handle:
    def remove(self):
        _hooks.clear()


def _register(hook):
    _hooks.append(hook)
    return _Handle()


class _Optimizer:
    pass


_optimizer = _Optimizer()


def _step():
    for hook in _hooks:
        hook(_optimizer, (), {})


optim = _module("torch.optim", step=_step)
optim.optimizer = _module("torch.optim.optimizer", register_optimizer_step_post_hook=_register)
_module("torch.utils")
sys.modules["torch.utils"].data = _module("torch.utils.data")
sys.modules["torch.utils.data"].dataloader = _module("torch.utils.data.dataloader")
