"""The largest batch that fits in the trial's lease, found in the trial's own process."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from vrampool.errors import InputError
from vrampool.training import cleaning, counting, runtime

T = TypeVar("T")

#: Texts of allocators that raise a plain RuntimeError: CUDA's libraries, and torch's own on the host.
_OOM_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


@dataclass(frozen=True)
class Fitted(Generic[T]):
    """A batch size that fits, and what `fn` returned for it."""

    batch_size: int
    value: T
    tried: tuple[int, ...]  #: sizes in the order they were tried; the last one is `batch_size`


def find_batch_size(
    trial: Any,
    fn: Callable[[int], T],
    *,
    start: int,
    minimum: int = 1,
    attribute: str = "training:batch_size",
) -> Fitted[T]:
    """Call `fn` with `start`, and with half of that after each out-of-memory error, until it returns.

    The cap of the trial's lease raises such errors, so the size found is one that fits the lease and harms nobody. The
    pool is told that the errors were caught on purpose and does not retry the trial. After each the memory of the
    failed call is given back and random states are set back, so the last call runs as if it were the first.

    Args:
        trial: An Optuna trial; gets the size used as user attribute `attribute`.
        fn: Takes a batch size. It must make its model, optimizer and data inside, and may train to the end or take one
            step only; if it reports, only once it is past its first step.
        start: First and largest size.
        minimum: Smallest size to try; when it fails too the error is raised, and the pool sees a trial too large
            for its lease.
        attribute: Name of the user attribute.

    Raises:
        InputError: `minimum` is less than 1 or more than `start`.
    """
    if not 1 <= minimum <= start:
        raise InputError(f"minimum must be within 1 and start, not {minimum} with start {start}")
    if sys.modules.get("torch") is not None:
        counting.watch_optimizers()
    states = _RandomStates()
    size, tried = start, [start]
    while True:
        ooms = _ooms()
        try:
            value = fn(size)
            break
        except Exception as error:
            if size <= minimum or not is_out_of_memory(error):
                raise
            # The frames are dropped while the error is still there: after this block nothing can reach them.
            cleaning.forget_frames(error)
        runtime.note_oom_handled(max(1, _ooms() - ooms))
        cleaning.release()
        _reset_peak()
        states.restore()
        size = max(minimum, size // 2)
        tried.append(size)
    trial.set_user_attr(attribute, size)
    return Fitted(size, value, tuple(tried))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception tells of memory that could not be had, on the device or the host."""
    if isinstance(error, MemoryError):
        return True
    # By type first, and text only of RuntimeErrors: clients of other services have errors of the same name.
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OOM_TEXTS)


def _ooms() -> int:
    """Return how many out-of-memory errors the allocator has raised in this process."""
    cuda = cleaning.initialized_cuda()
    return int(cuda.memory_stats().get("num_ooms", 0)) if cuda else 0


def _reset_peak() -> None:
    # The peak of a size that did not fit is the cap itself; kept, it would teach the pool a need for all of it.
    cuda = cleaning.initialized_cuda()
    if cuda:
        cuda.reset_peak_memory_stats()


class _RandomStates:
    """States of the random generators in use, to be set back."""

    def __init__(self) -> None:
        self._python = random.getstate()
        numpy: Any = sys.modules.get("numpy")
        torch: Any = sys.modules.get("torch")
        self._numpy = numpy.random.get_state() if numpy is not None else None
        self._torch = torch.get_rng_state() if torch is not None else None
        cuda = cleaning.initialized_cuda()
        self._cuda = cuda.get_rng_state() if cuda else None

    def restore(self) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        if self._torch is not None:
            sys.modules["torch"].set_rng_state(self._torch)
        if self._cuda is not None:
            sys.modules["torch"].cuda.set_rng_state(self._cuda)
