"""What RQ is told of a trial that a worker runs: begin, renew, finish, give back. One round trip each.

RQ's own classes say what is to be written, into a pipeline that is never sent; a script then carries it out in one
step, but only where no other worker has taken the job meanwhile. So RQ's tools see an ordinary job, and no moment
exists in which a job is in no list and in no registry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import redis
from redis.client import Pipeline
from rq.executions import Execution, ExecutionRegistry
from rq.job import Job, JobStatus
from rq.results import Result
from rq.utils import utcformat
from rq.worker import BaseWorker

from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.events import hint
from vrampool.queueing.jobs import KEPT_S
from vrampool.queueing.names import Names
from vrampool.queueing.scripts import Word, run_script

#: For so long the same end of an execution counts once, however often it is told.
_MARK_KEPT_MS = 60_000


class JobOutcome(StrEnum):
    """How RQ is told that a job ended. The storage knows the trial's own end."""

    FINISHED = "finished"  #: the objective gave a value, or pruned
    FAILED = "failed"
    STOPPED = "stopped"  #: ended on request, or its trial was not ours to run


class _Steps:
    """Commands and the conditions under which `guarded.lua` carries them out."""

    def __init__(self, connection: redis.Redis) -> None:
        self._connection = connection
        self.words: list[Word] = []

    def add(self, conditions: str, write: Callable[[Pipeline], object]) -> None:
        """Add what `write` puts into a pipeline. Conditions: letters, see `guarded.lua`."""
        encode: Callable[[Any], bytes] = self._connection.get_encoder().encode
        with self._connection.pipeline() as pipeline:
            write(pipeline)
            for command, _ in pipeline.command_stack:
                self.words += [conditions, len(command), *(encode(word) for word in command)]


@dataclass(frozen=True)
class _Trial:
    """One job in one worker's hands, as RQ's objects."""

    names: Names
    job: Job
    worker: str

    @classmethod
    def of(cls, connection: redis.Redis, pool: str, job_id: str, worker: str) -> _Trial:
        job = Job(job_id, connection=connection)
        job.origin = pool
        return cls(Names(pool), job, worker)

    def execution(self, connection: redis.Redis, execution_id: str) -> Execution:
        return Execution(execution_id, self.job.id, connection, worker_name=self.worker)

    def run(self, connection: redis.Redis, steps: _Steps, mark: str = "") -> bool:
        keys = [self.names.live(self.job.id), self.job.key]
        if mark:
            keys.append(self.names.once_prefix + mark)
        return bool(run_script(connection, "guarded", keys, [self.worker, _MARK_KEPT_MS, *steps.words]))


@talks_to_redis
def begin(connection: redis.Redis, pool: str, job_id: str, worker_name: str, ttl: int) -> str | None:
    """Tell RQ that this worker runs the job: execution, status started, out of the intermediate list.

    The parent says "started", not the child: RQ drops what is in its registry without that status.

    Round trips: 1.

    Args:
        connection: Redis.
        pool: The pool's name.
        job_id: The job.
        worker_name: Name of the RQ worker.
        ttl: Seconds until RQ calls the job abandoned if it is not renewed.

    Returns:
        The execution's id; None: another worker holds the job by now, so hands off.
    """
    trial = _Trial.of(connection, pool, job_id, worker_name)
    steps = _Steps(connection)
    created: list[Execution] = []
    steps.add("o", lambda pipe: created.append(Execution.create(trial.job, ttl, pipe, worker_name=worker_name)))
    steps.add("oj", lambda pipe: trial.job.prepare_for_execution(worker_name, pipe))
    steps.add("oj", lambda pipe: pipe.persist(trial.job.key))
    steps.add("o", lambda pipe: _leave_lists(pipe, trial))
    return created[0].id if trial.run(connection, steps) else None


@talks_to_redis
def renew(
    connection: redis.Redis, pool: str, worker_name: str, executions: Iterable[tuple[str, str]], ttl: int
) -> None:
    """Renew RQ's view of running trials. Everything is written whole, so that a Redis that was emptied knows it again.

    Round trips: 1.

    Args:
        connection: Redis.
        pool: The pool's name.
        worker_name: Name of the RQ worker.
        executions: (job id, execution id) of each trial that runs.
        ttl: Seconds, as for `begin`.
    """
    with connection.pipeline() as pipeline:
        for job_id, execution_id in executions:
            trial = _Trial.of(connection, pool, job_id, worker_name)
            execution = trial.execution(connection, execution_id)
            fields = execution.serialize()
            created_at = fields.pop("created_at")  # the true one stays where it is still known
            pipeline.hset(execution.key, mapping=fields)
            pipeline.hsetnx(execution.key, "created_at", created_at)
            pipeline.expire(execution.key, ttl)
            ExecutionRegistry(job_id, connection=pipeline).add(execution, ttl, pipeline)
            trial.job.started_job_registry.add_execution(execution, pipeline=pipeline, ttl=ttl)
            pipeline.sadd(execution.worker_executions_key, execution.composite_key)
            pipeline.expire(execution.worker_executions_key, ttl + 60)
            # RQ's clean-up may have thought it abandoned after a pause and set a date for its hash
            pipeline.persist(trial.job.key)
            pipeline.zrem(trial.names.failed, job_id)
        pipeline.execute()


@talks_to_redis
def finish(
    connection: redis.Redis,
    pool: str,
    job_id: str,
    worker_name: str,
    execution_id: str,
    outcome: JobOutcome | str,
    text: str = "",
    *,
    run_s: float = 0.0,
) -> bool:
    """Tell RQ how a job ended: execution away, status, registry, worker's counters; its keys end by themselves.

    Round trips: 1. A second call for the same execution within a minute changes nothing.

    Args:
        connection: Redis.
        pool: The pool's name.
        job_id: The job.
        worker_name: Name of the RQ worker.
        execution_id: What `begin` returned.
        outcome: How it ended.
        text: Why, for RQ's tools; shown for failed and stopped jobs.
        run_s: Seconds it ran, for the worker's total.

    Returns:
        False when another worker holds the job by now; only our execution was cleared away then.
    """
    outcome = JobOutcome(outcome)
    trial = _Trial.of(connection, pool, job_id, worker_name)
    job, names = trial.job, trial.names
    finished = outcome is JobOutcome.FINISHED
    steps = _Steps(connection)
    steps.add("", lambda pipe: trial.execution(connection, execution_id).delete(job, pipe))
    steps.add("o", lambda pipe: _leave_lists(pipe, trial))
    steps.add("o", lambda pipe: pipe.zrem(names.failed if finished else names.finished, job_id))
    steps.add("oj", lambda pipe: _register(pipe, names.finished if finished else names.failed, job_id))
    ended: Any = {"status": JobStatus(outcome.value), "ended_at": utcformat(datetime.now(UTC))}
    steps.add("oj", lambda pipe: pipe.hset(job.key, mapping=ended))
    steps.add("oj", lambda pipe: pipe.expire(job.key, KEPT_S))
    steps.add("oj", lambda pipe: _write_result(pipe, trial, execution_id, outcome, text))
    steps.add("o", lambda pipe: pipe.delete(names.live(job_id)))
    worker_key = BaseWorker.redis_worker_namespace_prefix + worker_name
    counter = "successful_job_count" if finished else "failed_job_count"
    steps.add("k", lambda pipe: pipe.hincrby(worker_key, counter, 1))
    steps.add("k", lambda pipe: pipe.hincrbyfloat(worker_key, "total_working_time", run_s))
    steps.add("", lambda pipe: pipe.publish(names.news, hint("told")))  # the coordinator and whoever waits look again
    return trial.run(connection, steps, mark=execution_id)


@talks_to_redis
def give_back(connection: redis.Redis, pool: str, job_id: str, worker_name: str, execution_id: str) -> bool:
    """Put a job that was begun back at the front of the queue: execution away, status queued, nobody holds it.

    Round trips: 1.

    Returns:
        False when another worker holds the job by now; only our execution was cleared away then.
    """
    trial = _Trial.of(connection, pool, job_id, worker_name)
    job, names = trial.job, trial.names
    queued: Any = {"status": JobStatus.QUEUED, "started_at": "", "worker_name": ""}
    steps = _Steps(connection)
    steps.add("", lambda pipe: trial.execution(connection, execution_id).delete(job, pipe))
    steps.add("o", lambda pipe: _leave_lists(pipe, trial))
    steps.add("oj", lambda pipe: pipe.hset(job.key, mapping=queued))
    steps.add("oj", lambda pipe: pipe.hdel(job.key, "lease"))
    steps.add("oj", lambda pipe: pipe.persist(job.key))
    steps.add("oj", lambda pipe: pipe.lpush(names.waiting, job_id))
    steps.add("o", lambda pipe: pipe.delete(names.live(job_id)))
    steps.add("oj", lambda pipe: pipe.publish(names.events, hint("given_back")))
    return trial.run(connection, steps)


def _leave_lists(pipeline: Pipeline, trial: _Trial) -> None:
    pipeline.lrem(trial.names.intermediate, 0, trial.job.id)
    pipeline.lrem(trial.names.waiting, 0, trial.job.id)
    pipeline.delete(trial.names.first_seen_prefix + trial.job.id)


def _register(pipeline: Pipeline, registry: str, job_id: str) -> None:
    """Enter an ended job; RQ would clean its registries only where a worker of its own runs maintenance."""
    now_s = int(time.time())
    pipeline.zremrangebyscore(registry, 0, now_s)
    pipeline.zadd(registry, {job_id: now_s + KEPT_S})
    pipeline.expire(registry, KEPT_S + 60)


def _write_result(pipeline: Pipeline, trial: _Trial, execution_id: str, outcome: JobOutcome, text: str) -> None:
    finished = outcome is JobOutcome.FINISHED
    Result.create(
        trial.job,
        Result.Type.SUCCESSFUL if finished else Result.Type.FAILED,  # as RQ does for a stopped job
        KEPT_S,
        exc_string=None if finished else text,
        worker_name=trial.worker,
        pipeline=pipeline,
        execution_id=execution_id,
    )
