"""Threads that block, so that the main loop never does: the inbox, lanes of work, timers, and the loop's own turn.

A worker has one main loop. It alone spawns (a parent-death signal follows the spawning thread) and it alone
changes the ledger. Whatever may hang, Redis or a database, runs in a `Lane`; results come back through the `Inbox`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import queue
import selectors
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("vrampool.worker")


class Inbox:
    """Calls for the main loop, put there by other threads and by signal handlers; readable when one waits."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def post(self, call: Callable[[], None]) -> None:
        """Add a call. Safe from any thread and from a signal handler."""
        self._calls.append(call)
        try:
            os.eventfd_write(self._fd, 1)
        except (OSError, ValueError):  # closed: the loop has ended and nobody will look
            pass

    def run(self) -> None:
        """Make all calls that wait, in order."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            pass
        for _ in range(len(self._calls)):
            self._calls.popleft()()

    def close(self) -> None:
        os.close(self._fd)


class Lane:
    """One thread that does blocking work in order.

    `submit(work, then)` runs ``work()`` in the thread and posts ``then(result, error)`` to the main loop; exactly
    one of the two is not None (or both are None for work that returns None).
    """

    def __init__(self, name: str, inbox: Inbox) -> None:
        self._inbox = inbox
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]] | None]
        self._work = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        self._work.put((work, then))

    def stop(self, timeout_s: float) -> bool:
        """Finish what was submitted and end the thread. False when it did not end in time (its work hangs)."""
        self._work.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, then = item
            result: Any = None
            failure: BaseException | None = None
            try:
                result = work()
            except BaseException as error:  # handed to the main loop, which decides
                failure = error
            self._inbox.post(lambda then=then, result=result, failure=failure: then(result, failure))  # type: ignore[misc]


def turn(selector: selectors.BaseSelector, limit_s: float) -> None:
    """Wait for descriptors and call the data of each that is ready, with its mask.

    One call may close what a later event of the same turn is of: that one's number is nobody's then, or already that of
    another descriptor, so the event is dropped.

    Args:
        selector: Of a main loop; what is registered there has a call as its data.
        limit_s: Wait no longer.
    """
    for key, mask in selector.select(limit_s):
        if selector.get_map().get(key.fd) is key:
            key.data(mask)


class Timers:
    """Calls at a time of the monotonic clock, made by the main loop."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when_s, next(self._sequence), call))

    def wait_s(self, now_s: float, limit_s: float) -> float:
        """Return how long the loop may sleep."""
        return max(0.0, min(limit_s, self._heap[0][0] - now_s)) if self._heap else limit_s

    def run(self, now_s: float) -> None:
        """Make every call that is due."""
        while self._heap and self._heap[0][0] <= now_s:
            heapq.heappop(self._heap)[2]()
