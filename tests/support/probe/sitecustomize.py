"""Loaded by the Python processes of a pool under test: on SIGUSR1 one writes down what it holds.

Worker and coordinator are closed to others of the same user, so nobody else can read it. Their children do not get the
variable, as it begins like the pool's own: in them this does nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

_FOLDER = os.environ.get("VRAMPOOL_TEST_PROBE")


def _write(_signum: int, _frame: Any) -> None:
    import json
    import threading

    held = {
        "modules": sorted(sys.modules),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "environment": dict(os.environ),
    }
    path = f"{_FOLDER}/{os.getpid()}.json"
    with open(f"{path}.new", "w") as file:
        json.dump(held, file)
    os.replace(f"{path}.new", path)


if _FOLDER:
    signal.signal(signal.SIGUSR1, _write)
