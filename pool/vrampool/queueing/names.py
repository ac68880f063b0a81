"""Names of all keys: RQ's own, made by RQ's classes, and ours, which begin with ``vrampool:<pool>:``."""

from __future__ import annotations

from rq.defaults import RQ_KEY_PREFIX
from rq.executions import ExecutionRegistry
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.queue import Queue
from rq.registry import FailedJobRegistry, FinishedJobRegistry, StartedJobRegistry
from rq.results import Result


class Names:
    """The keys of one pool. A pool's name holds no ':', so two pools on one Redis share none of ours."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        own = self.own_prefix
        # RQ's
        self.waiting = f"{Queue.redis_queue_namespace_prefix}{pool}"
        self.intermediate = IntermediateQueue.get_intermediate_queue_key(self.waiting)
        self.queues = Queue.redis_queues_keys
        self.started = StartedJobRegistry.key_template.format(pool)
        self.finished = FinishedJobRegistry.key_template.format(pool)
        self.failed = FailedJobRegistry.key_template.format(pool)
        self.job_prefix = Job.redis_job_namespace_prefix
        self.results_prefix: str = Result.get_key("")  # type: ignore[no-untyped-call]
        self.executions_prefix = ExecutionRegistry.key_template.format("")
        self.execution_prefix = f"{RQ_KEY_PREFIX}:execution:"
        self.first_seen_prefix = f"{self.intermediate}:first_seen:"
        # ours
        self.live_prefix = own + "live:"  #: + job id: name of the worker that holds the trial; ends by itself
        self.answer_prefix = own + "answer:"  #: + lease id: job id a take was answered with; kept a minute
        self.once_prefix = own + "once:"  #: + execution id: its end was recorded; kept a minute
        self.leader = own + "leader"  #: "<epoch> <name>" of the coordinator that leads; ends by itself
        self.epoch = own + "epoch"  #: the last epoch given out
        self.workers = own + "workers"  #: sorted set: worker names by the time their record ends
        self.worker_prefix = own + "worker:"  #: + name: the record as JSON; ends by itself
        self.budgets = own + "budgets"  #: hash: device id -> bytes it may hold
        self.budgets_seen = own + "budgets:seen"  #: sorted set: device ids by when they were last there
        self.earmarks = own + "earmarks"  #: hash: worker -> since when its device is kept free for which job
        self.events = own + "events"  #: channel of what concerns everybody
        self.news = own + "news"  #: channel of what workers have no use for: trials that ended, room on devices
        self.calls_prefix = own + "calls:"  #: + worker's name: channel on which it alone is called to trials that wait
        self.demand = own + "demand"  #: list as long as there are trials to run; for autoscalers
        self.samples_prefix = own + "samples:"  #: + device id: ring of samples
        self.releases = own + "releases"  #: ring of releases
        self.overheads = own + "overheads"  #: sorted set: "device|driver|torch" by the overhead seen there, in bytes
        self.output_prefix = own + "output:"  #: + reader's id: what a trial prints, for one who asked; kept a minute

    @property
    def own_prefix(self) -> str:
        """What all keys of ours begin with."""
        return f"vrampool:{self.pool}:"

    def knows(self, key: str) -> bool:
        """True for a key of ours that this version writes."""
        names = vars(self)
        prefixes = tuple(value for name, value in names.items() if name.endswith("_prefix"))
        return key in names.values() or key.startswith(prefixes)

    def job(self, job_id: str) -> str:
        return self.job_prefix + job_id

    def live(self, job_id: str) -> str:
        return self.live_prefix + job_id

    def calls(self, worker: str) -> str:
        return self.calls_prefix + worker
