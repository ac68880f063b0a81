"""A pytest plugin (``-p swap``): RQ's own tests meet our worker class where they say `rq.Worker`.

A `GpuWorker` runs nothing but the pool's signed trials, so one of these tests' functions would never run. `SuiteWorker`
therefore puts RQ's own loop and work-horse in the place of ours, and keeps everything else of the class: how it is
made and named, how it registers and leaves, heartbeats, executions, commands, signals. What fails here is something
that `rq info`, RQ's dashboards or `rq worker` would trip over.
"""

from __future__ import annotations

from typing import Any

import rq
import rq.worker
from rq.worker import BaseWorker, Worker

from vrampool.settings import Settings
from vrampool_worker import GpuWorker


class SuiteWorker(GpuWorker, Worker):
    """Our worker class with RQ's loop."""

    def __init__(self, queues: Any, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(queues, name, *args, settings=Settings(), **kwargs)

    def work(self, *args: Any, **kwargs: Any) -> bool:
        return bool(BaseWorker.work(self, *args, **kwargs))

    def execute_job(self, job: Any, queue: Any) -> None:
        Worker.execute_job(self, job, queue)


rq.Worker = SuiteWorker  # type: ignore[misc, assignment]
rq.worker.Worker = SuiteWorker  # type: ignore[misc, assignment]
