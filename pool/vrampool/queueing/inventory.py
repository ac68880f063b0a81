"""Everything that a pool has in Redis, read as it is: for `vrampool status --check`, and for tests of good manners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis
from rq.defaults import RQ_KEY_PREFIX
from rq.worker import BaseWorker
from rq.worker_registration import REDIS_WORKER_KEYS, WORKERS_BY_QUEUE_KEY

from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.names import Names

_BATCH = 500
#: A key that has no end by mistake gets this one.
MENDED_KEPT_S = 3_600
#: Statuses of a job that is still to be run, or is run.
_OPEN = ("queued", "started", "")


@dataclass(frozen=True)
class JobEntry:
    """A job's hash."""

    job_id: str
    status: str
    whole: bool  #: it has its signed ticket
    ends: bool  #: it has an end: RQ's time for ended jobs

    @property
    def open(self) -> bool:
        return self.status in _OPEN


@dataclass(frozen=True)
class Inventory:
    """What a pool has in Redis at one moment, more or less: it is read in several steps."""

    listed: tuple[str, ...] = ()  #: ids in the waiting list, in order, as often as they are there
    between: tuple[str, ...] = ()  #: ids in RQ's intermediate list: taken, and not begun yet
    jobs: dict[str, JobEntry] = field(default_factory=dict)  #: by id; of this pool only
    holders: dict[str, str] = field(default_factory=dict)  #: worker by job id: the liveness leases
    started: tuple[str, ...] = ()  #: "job id:execution id" that RQ shows as running
    executions: frozenset[str] = frozenset()  #: those of `started` whose execution is there
    workers: frozenset[str] = frozenset()  #: names of RQ's workers of this pool that are there
    gone_workers: frozenset[str] = frozenset()  #: names in RQ's lists whose record is not
    endless: tuple[str, ...] = ()  #: keys of ours that should end by themselves and do not
    unknown: frozenset[str] = frozenset()  #: keys under our prefix that this version does not know
    epoch: int | None = None  #: of the coordinator that leads
    uptime_s: float = 0.0  #: of the server


@talks_to_redis
def take_inventory(connection: redis.Redis, pool: str) -> Inventory:
    """Read everything of a pool. Walks over all keys of the database, in steps that hold nobody up.

    Round trips: some for each thousand keys.
    """
    names = Names(pool)
    with connection.pipeline(transaction=True) as pipeline:  # what moves between these is moved in one step too
        pipeline.lrange(names.waiting, 0, -1)
        pipeline.lrange(names.intermediate, 0, -1)
        pipeline.zrange(names.started, 0, -1)
        pipeline.get(names.leader)
        pipeline.info("server")
        listed, between, started, leader, server = pipeline.execute()
    composites = tuple(_text(item) for item in started)
    there = _exist(connection, [names.execution_prefix + item for item in composites])
    workers, gone = _rq_workers(connection, pool)
    endless, unknown = _own_keys(connection, names)
    return Inventory(
        listed=tuple(_text(item) for item in listed),
        between=tuple(_text(item) for item in between),
        jobs=_jobs(connection, names),
        holders=_holders(connection, names),
        started=composites,
        executions=frozenset(item for item, is_there in zip(composites, there, strict=True) if is_there),
        workers=workers,
        gone_workers=gone,
        endless=endless,
        unknown=unknown,
        epoch=int(leader.split(b" ")[0]) if leader else None,
        uptime_s=float(server["uptime_in_seconds"]),
    )


def keys_of(connection: redis.Redis, pool: str) -> dict[str, int]:
    """Return every key that belongs to a pool, ours and RQ's, with the seconds it has left; -1: no end."""
    names = Names(pool)
    found = [*_scan(connection, names.own_prefix), *_named(connection, names)]
    jobs = _jobs(connection, names)
    for job_id in jobs:
        found += [names.job(job_id), names.executions_prefix + job_id, names.results_prefix + job_id]
    found += [key for key in _scan(connection, names.execution_prefix) if _job_of(names, key) in jobs]
    for name in set().union(*_rq_workers(connection, pool)):
        key = BaseWorker.redis_worker_namespace_prefix + name
        found += [key, f"{key}:executions"]
    left = dict(zip(found, _ttls(connection, found), strict=True))
    return {key: ttl for key, ttl in left.items() if ttl != -2}


# ---- mending -------------------------------------------------------------------------------------------


@talks_to_redis
def drop_doubles(connection: redis.Redis, pool: str, job_id: str, times: int) -> None:
    """Take a job that is in the waiting list so many times out of it, but for once. Round trips: 1."""
    connection.lrem(Names(pool).waiting, -(times - 1), _bytes(job_id))  # type: ignore[arg-type]


@talks_to_redis
def drop_strange(connection: redis.Redis, pool: str, job_id: str) -> None:
    """Take an id that is no job's out of the lists, and whatever lies under its name. Round trips: 1."""
    names = Names(pool)
    raw: Any = _bytes(job_id)
    with connection.pipeline() as pipeline:
        pipeline.lrem(names.waiting, 0, raw)
        pipeline.lrem(names.intermediate, 0, raw)
        pipeline.delete(names.job_prefix.encode() + raw)
        pipeline.execute()


@talks_to_redis
def forget_execution(connection: redis.Redis, pool: str, composite: str) -> None:
    """Take an execution out of RQ's books; `composite` is "job id:execution id". Round trips: 1."""
    names = Names(pool)
    job_id, _, execution = composite.partition(":")
    with connection.pipeline() as pipeline:
        pipeline.zrem(names.started, _bytes(composite))
        pipeline.zrem(_bytes(names.executions_prefix + job_id), _bytes(execution))
        pipeline.delete(_bytes(names.execution_prefix + composite))
        pipeline.execute()


@talks_to_redis
def forget_rq_worker(connection: redis.Redis, pool: str, name: str) -> None:
    """Take a worker that is gone out of RQ's lists. Round trips: 1."""
    key: Any = _bytes(BaseWorker.redis_worker_namespace_prefix + name)
    with connection.pipeline() as pipeline:
        pipeline.srem(REDIS_WORKER_KEYS, key)
        pipeline.srem(WORKERS_BY_QUEUE_KEY % pool, key)
        pipeline.delete(key + b":executions")
        pipeline.execute()


@talks_to_redis
def give_end(connection: redis.Redis, key: str) -> None:
    """Let a key end in an hour: whoever still needs it writes it with its own end before. Round trips: 1."""
    connection.expire(_bytes(key), MENDED_KEPT_S, nx=True)


# ---- parts ---------------------------------------------------------------------------------------------


def _text(value: bytes | str) -> str:
    """Return a name as text; what is no UTF-8 was not written by us, and comes back as the same bytes."""
    return value if isinstance(value, str) else value.decode(errors="surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _scan(connection: redis.Redis, prefix: str) -> Iterator[str]:
    quoted = "".join(f"\\{char}" if char in "*?[]\\" else char for char in prefix)
    for key in connection.scan_iter(match=f"{quoted}*", count=_BATCH):
        yield _text(key)


def _batches(items: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]


def _each(connection: redis.Redis, items: Sequence[str], call: Any) -> list[Any]:
    """Make one call for each key, in batches. A key of the wrong kind gives the error as its answer."""
    answers: list[Any] = []
    for batch in _batches(items):
        with connection.pipeline(transaction=False) as pipeline:
            for item in batch:
                call(pipeline, _bytes(item))
            answers += pipeline.execute(raise_on_error=False)
    return answers


def _exist(connection: redis.Redis, keys: Sequence[str]) -> list[bool]:
    return [bool(found) for found in _each(connection, keys, lambda pipeline, key: pipeline.exists(key))]


def _ttls(connection: redis.Redis, keys: Sequence[str]) -> list[int]:
    return [int(ttl) for ttl in _each(connection, keys, lambda pipeline, key: pipeline.ttl(key))]


def _jobs(connection: redis.Redis, names: Names) -> dict[str, JobEntry]:
    keys = list(_scan(connection, names.job_prefix))
    rows = _each(connection, keys, lambda pipeline, key: pipeline.hmget(key, ["origin", "status"]))
    ours = [key for key, row in zip(keys, rows, strict=True) if isinstance(row, list) and _is(row[0], names.pool)]
    statuses = {key: row[1] for key, row in zip(keys, rows, strict=True) if isinstance(row, list)}
    whole = _each(connection, ours, lambda pipeline, key: pipeline.hexists(key, "data"))
    return {
        job_id: JobEntry(job_id, _text(statuses[key] or b""), bool(is_whole), ttl != -1)
        for key, is_whole, ttl in zip(ours, whole, _ttls(connection, ours), strict=True)
        for job_id in [key.removeprefix(names.job_prefix)]
    }


def _is(value: bytes | None, text: str) -> bool:
    return value is not None and value == text.encode()


def _holders(connection: redis.Redis, names: Names) -> dict[str, str]:
    keys = list(_scan(connection, names.live_prefix))
    values = _each(connection, keys, lambda pipeline, key: pipeline.get(key))
    return {
        key.removeprefix(names.live_prefix): _text(value)
        for key, value in zip(keys, values, strict=True)
        if isinstance(value, bytes)
    }


def _rq_workers(connection: redis.Redis, pool: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of RQ's workers of a pool: those that are there, and those that are only listed."""
    prefix = BaseWorker.redis_worker_namespace_prefix
    members: Any = connection.smembers(WORKERS_BY_QUEUE_KEY % pool)
    keys = sorted(_text(key) for key in members)
    there = _exist(connection, keys)
    alive = {key.removeprefix(prefix) for key, is_there in zip(keys, there, strict=True) if is_there}
    return frozenset(alive), frozenset(key.removeprefix(prefix) for key in keys) - alive


def _own_keys(connection: redis.Redis, names: Names) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return which keys under our prefix have no end, and which this version does not know."""
    keys = sorted(_scan(connection, names.own_prefix))
    endless = [key for key, ttl in zip(keys, _ttls(connection, keys), strict=True) if ttl == -1]
    return tuple(endless), frozenset(key for key in keys if not names.knows(key))


def _named(connection: redis.Redis, names: Names) -> Iterable[str]:
    """Yield RQ's keys that are named after the pool's queue."""
    yield from (names.waiting, names.intermediate, names.started, names.finished, names.failed)
    yield from _scan(connection, names.first_seen_prefix)
    yield from (WORKERS_BY_QUEUE_KEY % names.pool, f"{RQ_KEY_PREFIX}:clean_registries:{names.pool}")


def _job_of(names: Names, execution_key: str) -> str:
    return execution_key.removeprefix(names.execution_prefix).partition(":")[0]
