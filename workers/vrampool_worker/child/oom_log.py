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
    """Those that reached the objective, and that nobody said were caught on purpose.

    Libraries below Python run out of memory on purpose: cuDNN tries an algorithm that wants a large workspace, is
    refused, and takes another one. The allocator counts that; the objective never hears of it. An error reaches
    Python as an object of torch's class, so those that are made are counted.

    Args:
        torch: The module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._errors: deque[AllocatorOom] = deque(maxlen=64)
        self._latest: AllocatorOom | None = None  #: as the allocator told it; nobody knows yet who gets it
        self._attached = False
        self.raised: int | None = None  #: errors that reached Python; None: that cannot be told

    def attach(self) -> None:
        """Listen to the allocator, once it is there. An old torch tells nothing: then only its count is known."""
        if self._attached:
            return
        self._attached = True
        self._watch_class()
        listen = getattr(self._torch._C, "_cuda_attach_out_of_memory_observer", None)
        if listen is not None and not _is_old(self._torch):
            listen(self._note)

    def _watch_class(self) -> None:
        error_class = getattr(self._torch, "OutOfMemoryError", None)
        if error_class is None:
            return
        original = error_class.__init__

        def note_raised(error: Any, *arguments: Any, **keywords: Any) -> None:
            original(error, *arguments, **keywords)
            self._reached()

        try:
            error_class.__init__ = note_raised
        except TypeError:  # a class that cannot be changed: each error is taken for one that was raised
            return
        self.raised = 0

    def _reached(self) -> None:
        """An error has reached Python: the last one that the allocator told."""
        self.raised = (self.raised or 0) + 1
        if self._latest is not None:
            self._errors.append(self._latest)
            self._latest = None

    def _note(self, device: int, asked_bytes: int, allowed_bytes: int, free_bytes: int) -> None:
        """Note an error. Runs inside of the allocator, where an exception would take the error's place."""
        try:
            reserved_bytes = int(self._torch.cuda.memory_reserved(device))
            found = AllocatorOom(int(asked_bytes), int(allowed_bytes), int(free_bytes), reserved_bytes)
            if self.raised is None:
                self._errors.append(found)
            else:
                self._latest = found
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
