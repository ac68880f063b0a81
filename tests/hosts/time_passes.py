"""How long a fault lasts is the fault itself: nothing is waited for meanwhile."""

from __future__ import annotations

import time

from support.waiting import until


def last(seconds: float) -> None:
    """Let so many seconds pass."""
    end_s = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end_s, timeout_s=seconds + 60, what="the end of a fault")
