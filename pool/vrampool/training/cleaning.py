"""Giving memory back inside a process. The end of the process gives back the rest: nothing here replaces that."""

from __future__ import annotations

import gc
import sys
import traceback
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CleanedUp:
    """What a clean-up found and left. Bytes are of torch's allocator on the GPU; 0 without one."""

    allocated_before_bytes: int = 0
    allocated_bytes: int = 0  #: still referenced by something
    torch_reserved_bytes: int = 0  #: still cached after `empty_cache`
    loaders_ended: int = 0  #: data loader iterators whose workers were ended
    problem: str = ""  #: what kept the device from being cleaned, such as an earlier failed kernel


def release(*objects: Any) -> CleanedUp:
    """Give back what can be given back now, in the middle of a trial.

    Drops what the exception being handled holds in its traceback, collects cycles, waits for the device and empties the
    allocator's cache. Live data loaders go on.

    Args:
        objects: What is no longer needed although names still refer to it. Modules and tensors lose their storage,
            optimizers their state and gradients, data loaders that keep their workers lose them. Only a data loader can
            be used afterwards.
    """
    ended = sum(_strip(item) for item in objects)
    return _collect(sys.exception(), ended)


def clean_up(error: BaseException | None = None) -> CleanedUp:
    """Clean up at the end of a trial; the child calls it where a GPU was used, also after an exception.

    Besides what `release` does, the workers of all data loaders are ended. Never raises: a device that no
    longer answers is told in `problem`.

    Args:
        error: How the objective ended. Its traceback stays readable, but the variables of its frames are dropped:
            write the text first if values of variables are wanted.
    """
    for problem_holder in ("last_exc", "last_value", "last_traceback"):
        # A notebook or interactive interpreter keeps the last exception, and its frames their tensors.
        if hasattr(sys, problem_holder):
            setattr(sys, problem_holder, None)
    return _collect(error, end_loaders())


def forget_frames(error: BaseException | None) -> None:
    """Drop the local variables of all finished frames that an exception and its causes hold."""
    waiting, known = [error], set()
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in known:
            continue
        known.add(id(error))
        traceback.clear_frames(error.__traceback__)
        waiting += [error.__cause__, error.__context__]
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions


def _collect(error: BaseException | None, loaders_ended: int) -> CleanedUp:
    device = initialized_cuda()
    before = device.memory_allocated() if device else 0
    forget_frames(error)
    gc.collect()
    if device is None:
        return CleanedUp(loaders_ended=loaders_ended)
    problem = ""
    try:
        # Kernels in flight still use their blocks; only after them the cache can be given back whole.
        device.synchronize()
        device.empty_cache()
    except RuntimeError as failure:  # the context is broken, for example by a device-side assert
        problem = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
    return CleanedUp(before, device.memory_allocated(), device.memory_reserved(), loaders_ended, problem)


def initialized_cuda() -> Any:
    """Return `torch.cuda` if this process has used it; asking must not create a context."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None
    return torch.cuda


def _strip(item: Any) -> int:
    """Take the memory out of one object; return how many data loaders' workers were ended."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return 0
    if isinstance(item, torch.nn.Module):
        for tensor in [*item.parameters(), *item.buffers()]:
            _empty(tensor)
    elif isinstance(item, torch.optim.Optimizer):
        item.zero_grad(set_to_none=True)
        item.state.clear()
    elif isinstance(item, torch.Tensor):
        _empty(item)
    elif isinstance(item, torch.utils.data.DataLoader):
        return int(_end_iterator(item, getattr(item, "_iterator", None)))
    return 0


def _empty(tensor: Any) -> None:
    # In place, since optimizers and closures hold the same tensor.
    tensor.grad = None
    tensor.data = tensor.data.new_empty(0)


def end_loaders() -> int:
    """End the workers of all data loaders; return how many iterators had some."""
    # A walk over all objects takes a while in a large process, so only when there is any worker process.
    processes = sys.modules.get("multiprocessing")
    if processes is None or "torch.utils.data.dataloader" not in sys.modules or not processes.active_children():
        return 0
    from torch.utils.data import DataLoader, dataloader

    iterator_class = getattr(dataloader, "_MultiProcessingDataLoaderIter", ())
    # By type: `isinstance` asks an object for its class, and some proxies answer with a warning or load something.
    found = [item for item in gc.get_objects() if issubclass(type(item), (DataLoader, iterator_class))]
    ended = 0
    for item in found:
        if isinstance(item, DataLoader):
            ended += _end_iterator(item, getattr(item, "_iterator", None))
    for item in found:
        if not isinstance(item, DataLoader):
            ended += _end_iterator(None, item)
    return ended


def _end_iterator(loader: Any, iterator: Any) -> bool:
    """End an iterator's workers. A loader that keeps them forgets the iterator, or its next use would wait for ever."""
    if loader is not None and iterator is not None:
        loader._iterator = None
    end = getattr(iterator, "_shutdown_workers", None)
    if end is None or getattr(iterator, "_shutdown", False):
        return False
    end()
    return True
