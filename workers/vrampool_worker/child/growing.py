"""A trial that holds nearly all of its cap asks for more, before its allocator has to fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: It asks when it holds more than this share of its cap.
ASK_AT = 0.9
#: An answer takes a millisecond or two; training goes on without it when it takes longer, so nothing waits for ever.
ANSWER_S = 0.25
#: After a no it asks again when it holds this share of its cap more than then, or after so long.
_MORE = 0.01
_AGAIN_S = 2.0


class Growing:
    """Asks, and remembers the answer. Called by the sampling thread, the training one, and the one that reads.

    Args:
        ask: Sends the wish: ``ask(held_bytes, cap_bytes)``. The answer is a new cap (`granted`) or a no (`refused`).
    """

    def __init__(self, ask: Callable[[int, int], None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._answered.set()
        self._asked_at_s = float("-inf")
        self._asked_at_bytes = 0
        self._refused_at_bytes: int | None = None

    def look(self, held_bytes: int, cap_bytes: int, *, wait_s: float = 0.0) -> None:
        """Ask if so much of the cap is held, and wait for the answer, but no longer than `wait_s`."""
        if held_bytes <= ASK_AT * cap_bytes:
            return
        with self._lock:
            if not self._due(held_bytes, cap_bytes):
                return
            self._asked_at_s, self._asked_at_bytes = time.monotonic(), held_bytes
            self._answered.clear()
        self._ask(held_bytes, cap_bytes)
        if wait_s:
            self._answered.wait(wait_s)

    def _due(self, held_bytes: int, cap_bytes: int) -> bool:
        if time.monotonic() - self._asked_at_s >= _AGAIN_S:
            return True
        if not self._answered.is_set():
            return False
        return self._refused_at_bytes is None or held_bytes > self._refused_at_bytes + _MORE * cap_bytes

    def granted(self) -> None:
        """The cap is another one by now."""
        self._refused_at_bytes = None
        self._answered.set()

    def refused(self) -> None:
        """The cap stays as it is."""
        self._refused_at_bytes = self._asked_at_bytes
        self._answered.set()
