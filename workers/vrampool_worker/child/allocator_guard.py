"""The other ways around a trial's cap: torch's allocator settings may be changed, but not the fraction in them.

What is set by `PYTORCH_CUDA_ALLOC_CONF` may be set again while the process runs, and one of the keys is the very
fraction that the cap is. Another allocator altogether would know no cap at all.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

#: Where torch takes settings at run time; the second is that of versions before 2.9.
_SETTERS = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
_FRACTION = "per_process_memory_fraction"


def guard_allocator(torch: Any, apply_cap: Callable[[], None]) -> None:
    """Replace what would raise the cap.

    Args:
        torch: The module.
        apply_cap: Sets the cap again; called after settings were changed, as they may have reset it.
    """
    for name in _SETTERS:
        original = getattr(torch._C, name, None)
        if original is not None:
            setattr(torch._C, name, _without_fraction(original, apply_cap))
    memory = torch.cuda.memory
    if hasattr(memory, "change_current_allocator"):
        refusing = _refusing(memory.change_current_allocator)
        memory.change_current_allocator = refusing
        if hasattr(torch.cuda, "change_current_allocator"):
            torch.cuda.change_current_allocator = refusing


def _without_fraction(original: Callable[[str], Any], apply_cap: Callable[[], None]) -> Callable[[str], Any]:
    @functools.wraps(original)
    def guarded(settings: str) -> Any:
        kept = [item for item in settings.split(",") if item.partition(":")[0].strip() != _FRACTION]
        if ",".join(kept) != settings:
            warnings.warn(f"{_FRACTION} is this trial's lease and stays as it is", stacklevel=2)
        result = original(",".join(kept)) if kept else None
        apply_cap()
        return result

    return guarded


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def refused(*_arguments: Any, **_keywords: Any) -> None:
        raise RuntimeError(
            "a trial of a pool uses torch's own allocator: another one would not be held to the trial's lease"
        )

    return refused
