"""Out-of-memory errors as torch's allocator tells them when they happen, whoever catches them later."""

from __future__ import annotations

import re
from collections import deque
from typing import Any, NamedTuple

#: Before this torch called its observers with the allocator's lock held; one that then waits for the interpreter's lock
#: may wait for ever, as another thread that has it asks the allocator.
_FIRST_VERSION = (2, 2)


class AllocatorOom(NamedTuple):
    """One of them. Bytes."""

    asked_bytes: int
    allowed_bytes: int  #: the cap, or the whole device where there is none
    free_bytes: int  #: of the device
    reserved_bytes: int  #: by this process


class OomLog:
    """The errors that nobody said were caught on purpose.

    Args:
        torch: The module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._errors: deque[AllocatorOom] = deque(maxlen=64)
        self._attached = False

    def attach(self) -> None:
        """Listen to the allocator, once it is there. An old torch tells nothing: then only its count is known."""
        listen = getattr(self._torch._C, "_cuda_attach_out_of_memory_observer", None)
        if listen is not None and not self._attached and not _is_old(self._torch):
            self._attached = True
            listen(self._note)

    def _note(self, device: int, asked_bytes: int, allowed_bytes: int, free_bytes: int) -> None:
        """Note an error. Runs inside of the allocator, where an exception would take the error's place."""
        try:
            reserved_bytes = int(self._torch.cuda.memory_reserved(device))
            self._errors.append(AllocatorOom(int(asked_bytes), int(allowed_bytes), int(free_bytes), reserved_bytes))
        except Exception:
            return

    def forget(self, count: int) -> None:
        """Drop the last ones: a helper of ours has caught them on purpose."""
        for _ in range(min(count, len(self._errors))):
            self._errors.pop()

    def last(self) -> dict[str, int]:
        """Return the last one as fields of a `MemorySample`; empty when there was none."""
        if not self._errors:
            return {}
        return {f"oom_{name}": value for name, value in self._errors[-1]._asdict().items()}


def _is_old(torch: Any) -> bool:
    found = re.match(r"(\d+)\.(\d+)", str(getattr(torch, "__version__", "")))
    return found is not None and (int(found[1]), int(found[2])) < _FIRST_VERSION
