"""Records of workers as tests of the queue need them."""

from __future__ import annotations

from vrampool.queueing import WorkerRecord
from vrampool.units import GIB


def record(name: str = "w1", **changes) -> WorkerRecord:
    """One with an idle H200; changes are fields of the record."""
    values = {
        "name": name,
        "host": "hub",
        "pid": 42,
        "device_id": f"GPU-{name}",
        "device_name": "H200",
        "device_kind": "cuda",
        "total_bytes": 140 * GIB,
        "budget_bytes": 119 * GIB,
        "free_bytes": 60 * GIB,
        "slots": 16,
        "state": "ready",
    }
    return WorkerRecord(**{**values, **changes})
