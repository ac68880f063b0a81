"""The data plane: a worker per device, a fresh process per trial.

`rq worker --worker-class vrampool_worker.GpuWorker vrampool` finds the class here; it is imported when asked for,
since a trial's own process imports this package too and must not load RQ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vrampool_worker.rq_worker import GpuWorker as GpuWorker

__all__ = ["GpuWorker"]


def __getattr__(name: str) -> Any:
    if name == "GpuWorker":
        from vrampool_worker.rq_worker import GpuWorker

        return GpuWorker
    raise AttributeError(f"module 'vrampool_worker' has no attribute {name!r}")
