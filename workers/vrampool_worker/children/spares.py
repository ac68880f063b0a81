"""Spares: children started ahead of need, with their imports done, each for exactly one trial.

How many wait follows from how often trials come and how long a child takes to be ready: while one is made, that many
are taken. Their memory on the host bounds it.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from vrampool_worker.children.child import Child

_log = logging.getLogger("vrampool.worker")

#: A spare that dies so often before it was used says that the environment is broken.
_FAILURES_TO_PAUSE = 3
_PAUSE_S = 30.0
#: The rate of trials is that of so many takes, or of so long a time if fewer came.
_TAKES = 16
_RATE_S = 60.0
#: Trials do not come evenly, so a few more wait than are taken while one is made.
_MORE = 1.25
#: More than this waits for nobody.
_MOST = 16
#: Children started at once leave half of the cores to the trials that run. An import takes one of them, for 2 to 10 s
#: on a machine of 16: with four at once no more than one trial in two seconds could start there.
_CORES_PER_START = 2
#: A child that was just handed its trial has the processor to itself until it says that the trial has begun, or for so
#: long: a new interpreter beside it would double the time of its start.
_HANDOVER_S = 0.25
#: Trials come in bursts: so long more may wait than are wanted before one after another is let go.
_SURPLUS_S = 30.0
#: What a child that imports nothing ahead takes to be ready, about.
_QUICK_S = 0.3
#: A new worker makes one that imports nothing first. If no trial comes for so long there is time for the others.
_FIRST_S = 1.0
#: A trial that is held to little of the host's memory wants so much of it beside what is imported ahead.
_OWN_BYTES = 32 * 1024**2
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Source(Protocol):
    """Where children come from: `supply.Supply`. Called from the main loop only."""

    def spawn(self, full: bool) -> Child:
        """Start a child; unless it is `full`, it imports nothing ahead."""

    def cheap(self) -> bool:
        """Whether a child is ready almost at once: it imports nothing ahead, or is forked."""

    def soon(self, now_s: float) -> bool:
        """Whether children will be cheap in a moment; until then none is made."""


class SpareShelf:
    """Keeps some children waiting.

    A trial gets one that is ready. Where there is none, it gets one that imports nothing ahead rather than one that is
    in the middle of its imports, for it may need none of them; unless it is known to need them, or they are nearly
    done. So the first child of a new worker imports nothing either.

    Args:
        source: Starts children.
        watch: Registers a child's descriptors with the loop's selector.
        count: How many wait at least; 0: none, ever.
        memory_bytes: What all that wait may hold of the host's memory, those beyond `count` included; None: nothing
            but `count` wait.
        cores: Of the host, for starting several at once.
        private_bytes: Returns what a waiting child holds for itself; replaced by tests.
        needed: Whether some trial could use another one; asked where children are not cheap.
    """

    def __init__(
        self,
        source: Source,
        watch: Callable[[Child], None],
        count: int,
        *,
        memory_bytes: int | None = None,
        cores: int | None = None,
        private_bytes: Callable[[int], int] | None = None,
        needed: Callable[[float], bool] = lambda now_s: True,
    ) -> None:
        self._source = source
        self._needed = needed
        self._watch = watch
        self._count = count
        self._memory_bytes = memory_bytes
        self._starts_at_once = max(1, (cores or os.cpu_count() or 1) // _CORES_PER_START)
        self._private_bytes = private_bytes or private_bytes_of
        self._waiting: list[Child] = []
        self._failures = 0
        self._paused_until_s = 0.0
        self._takes: deque[float] = deque(maxlen=_TAKES)
        self._ready_s = 0.0  #: what a child takes from its start until it is ready: the longest of late
        self._each_bytes = 0  #: what one that waits holds, the largest that was seen
        self._seen: set[Child] = set()
        self._early: list[Child] = []  #: taken before they were ready
        self._surplus_since_s: float | None = None
        self._hold_until_s = 0.0
        self._opened_s: float | None = None
        self._quick: Child | None = None  #: imports nothing, and waits until others do

    @property
    def waiting(self) -> int:
        """Return how many wait or are on their way, with everything imported."""
        return len(self._waiting)

    @property
    def trouble(self) -> str:
        """Return what is wrong with an import of those on their way, in words; empty: nothing."""
        imports = [child.importing for child in (*self._waiting, *self._early) if child.importing is not None]
        return next((item.trouble for item in imports if item.trouble), "")

    def soon(self, now_s: float) -> bool:
        """Whether it is better to wait for a child than to start one now."""
        return self._source.soon(now_s)

    def wanted(self, now_s: float) -> int:
        """Return how many should wait now."""
        if not self._count or self._memory_bytes is None:
            return self._count
        while self._takes and now_s - self._takes[0] > _RATE_S:
            self._takes.popleft()
        if len(self._takes) < 2:
            return self._count
        rate_per_s = (len(self._takes) - 1) / max(now_s - self._takes[0], 0.001)
        by_rate = min(_MOST, math.ceil(_MORE * rate_per_s * self._ready_s + 0.25))
        # What one holds is not known before one has waited; then there is one more for that.
        by_memory = self._memory_bytes // self._each_bytes if self._each_bytes else self._count + 1
        return max(self._count, min(by_rate, by_memory))

    def take(self, needs: bool | None = None, room_bytes: int | None = None) -> Child:
        """Return a child for a trial: one that is ready, else one on its way, or a new one, as is said above.

        Args:
            needs: Whether the trial needs what is imported ahead; None: nobody knows yet.
            room_bytes: What it may hold of the host's memory, imports included; None: that is not bounded.
        """
        now_s = time.monotonic()
        self._hold_until_s = now_s + _HANDOVER_S
        narrow = room_bytes is not None and self._each_bytes + _OWN_BYTES > room_bytes
        if narrow and not needs and not self._source.cheap():
            return self._take_quick() or self._start(False)
        self._takes.append(now_s)
        ready = next((child for child in self._waiting if child.ready), None)
        if ready is not None:
            self._look_at(ready)
            self._waiting.remove(ready)
            self._failures = 0
            return ready
        cheap = self._source.cheap()
        coming = [child for child in self._waiting if child.importing is None or not child.importing.hangs]
        if len(coming) < len(self._waiting):
            needs = False  # another one would hang in the same import
        if coming and (cheap or needs or self._nearly_ready(coming[0], now_s)):
            self._waiting.remove(coming[0])
            self._early.append(coming[0])
            return coming[0]
        if (quick := self._take_quick()) is not None:
            return quick
        child = self._start(cheap or bool(needs))
        if cheap or needs:
            self._early.append(child)
        return child

    def _take_quick(self) -> Child | None:
        quick, self._quick = self._quick, None
        return quick

    def _nearly_ready(self, child: Child, now_s: float) -> bool:
        return 0 < self._ready_s <= now_s - child.spawned_at_s + _QUICK_S

    def begun(self) -> None:
        """A trial has begun: what was taken needs the processor no more than others."""
        self._hold_until_s = 0.0

    def fill(self, now_s: float) -> None:
        """Start what is missing, few at a time: imports of many would slow the trials that run.

        What waits beyond that for long is let go: the host's memory is the trials'.
        """
        for child in (*self._waiting, *self._early):
            if child.importing is not None:
                child.importing.look(now_s)
        if now_s < self._paused_until_s or now_s < self._hold_until_s or self._source.soon(now_s):
            return
        for child in self._waiting:
            if child.ready:
                self._look_at(child)
        for child in [child for child in self._early if child.start_s]:
            self._early.remove(child)
            self._ready_s = max(child.start_s, self._ready_s * 0.8)
            if not self._each_bytes and child.ready:  # its trial has hardly begun
                self._each_bytes = self._private_bytes(child.pid or 0)
        cheap = self._source.cheap()
        if not cheap and self._count and self._quick_first(now_s):
            return
        missing = self.wanted(now_s) - len(self._waiting)
        self._let_go(-missing, now_s)
        coming = sum(not child.ready for child in self._waiting)
        for _ in range(min(missing, self._starts_at_once - coming)):
            if not cheap and not self._needed(now_s):
                return
            self._waiting.append(self._start(True))

    def _quick_first(self, now_s: float) -> bool:
        """See to the first child, which imports nothing; True while the others had better wait for it or its trial."""
        if self._opened_s is None:
            self._opened_s = now_s
            if not self._takes:
                self._quick = self._start(False)
        if self._quick is not None and any(child.ready for child in self._waiting):
            self._quick.kill()
            self._quick = None
        return not self._takes and now_s - self._opened_s < _FIRST_S

    def _let_go(self, surplus: int, now_s: float) -> None:
        """End one that waits in vain, once there have been too many for long."""
        if surplus <= 0:
            self._surplus_since_s = None
        elif self._surplus_since_s is None:
            self._surplus_since_s = now_s
        elif now_s - self._surplus_since_s >= _SURPLUS_S:
            self._waiting.pop().kill()

    def _look_at(self, child: Child) -> None:
        """Learn from a child that is ready what one costs; once for each."""
        if child in self._seen:
            return
        self._seen = {one for one in self._seen if one in self._waiting} | {child}
        self._ready_s = max(child.start_s, self._ready_s * 0.8)
        self._each_bytes = max(self._each_bytes, self._private_bytes(child.pid or 0), 1)

    def gone(self, child: Child) -> bool:
        """Note that a child ended. True when it was a spare."""
        if child is self._quick:
            self._quick = None  # as with the others, what broke it is told below
        elif child in self._waiting:
            self._waiting.remove(child)
        else:
            return False
        if not self._count:
            return True  # the shelf is closing: it was told to end
        self._failures += 1
        _log.warning("a spare process ended before it was used: %s", child.log_tail() or "it said nothing")
        if self._failures >= _FAILURES_TO_PAUSE:
            self._paused_until_s = time.monotonic() + _PAUSE_S
        return True

    def holds(self, child: Child) -> bool:
        return child is self._quick or child in self._waiting

    def close(self) -> None:
        """End all that wait."""
        self._count = 0
        for child in (*self._waiting, *([self._quick] if self._quick is not None else ())):
            child.kill()

    def _start(self, full: bool) -> Child:
        child = self._source.spawn(full)
        self._watch(child)
        return child


def private_bytes_of(pid: int) -> int:
    """Return what a process holds that it shares with nobody, about: cheap to ask, unlike its exact share. 0: gone."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except (OSError, ValueError):
        return 0
    return max(0, resident - shared) * _PAGE_BYTES
