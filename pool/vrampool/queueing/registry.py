"""The workers of a pool: who is there, on which device, and what it can take."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Self

import redis

from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.events import ROOM, hint
from vrampool.queueing.names import Names
from vrampool.queueing.scripts import Word, run_script

#: A device that was there within so long counts when the largest one is asked for.
BUDGET_KEPT_S = 24 * 3600
#: So much of a budget comes and goes with other programs.
_WAVER = 0.02


@dataclass(frozen=True)
class RunningTrial:
    """A trial that a worker runs, as it tells."""

    study: str
    number: int
    lease_bytes: int
    measured_bytes: int | None  #: None: not measured
    since: float  #: seconds since the epoch
    peak_bytes: int | None = None  #: the most it was seen to hold; only once it has reported, so has been once around
    reason: str = ""  #: what the ledger last decided about it, in words
    trouble: str = ""  #: what holds it up and what helps, in words; empty: nothing

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        return cls(**_known(cls, raw))


@dataclass(frozen=True)
class MpsState:
    """NVIDIA's MPS on a worker's card, where `--mps` asked for it."""

    state: str  #: "starting", "on" or "off"
    reason: str = ""  #: why it is off, in words
    clients: int = 0  #: trials that run as its clients
    outside: dict[str, str] = field(default_factory=dict)  #: objectives that run outside for good: name -> why

    @property
    def short(self) -> str:
        """Return it in a word or two: "MPS on, 3 trials"; empty where it is off: `notes` say why."""
        if self.state == "off":
            return ""
        trials = "" if not self.clients else ", 1 trial" if self.clients == 1 else f", {self.clients} trials"
        return f"MPS {self.state}{trials}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what is to be known beside it: why it is off, and which objectives it does without."""
        off = (f"MPS is off: {self.reason}",) if self.reason else ()
        return (*off, *(f"{name} runs outside MPS: {why}" for name, why in self.outside.items()))

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        return cls(**_known(cls, raw))


@dataclass(frozen=True)
class WorkerRecord:
    """What a worker tells of itself with every beat."""

    name: str
    host: str
    pid: int
    device_id: str
    device_name: str
    device_kind: str  #: "cuda" or "cpu"
    total_bytes: int
    budget_bytes: int
    free_bytes: int
    slots: int  #: children it may run at once
    state: str  #: "ready", "draining", "paused", "quarantined" or "blind"
    reason: str = ""  #: why it is not ready, in words
    running: tuple[RunningTrial, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)  #: submissions it cannot run: id -> reason
    versions: dict[str, str] = field(default_factory=dict)  #: python, optuna, torch, vrampool, wire
    most_bytes: int | None = None  #: free if no trial were on the device; None: written by an older worker
    room_bytes: int | None = None  #: of `free_bytes`, for others than the earmark's trial; None: all of it
    earmark: str = ""  #: the job that the device is kept free for, as far as the worker has heard
    full_submissions: tuple[str, ...] = ()  #: they run as many trials on the device as they allow for one
    capabilities: tuple[str, ...] = ()  #: beside its device's kind; what a trial's `requires` is compared with
    unknown: tuple[str, ...] = ()  #: figures that a GPU does not tell: names of a reading's fields
    leftovers: tuple[str, ...] = ()  #: what ended trials left in use on the device, and who holds it, in words
    troubles: tuple[str, ...] = ()  #: what holds trials up that are to start here, and what helps, in words
    overhead_bytes: int | None = None  #: what a trial's lease is larger than the cap on torch's allocator; CPU: None
    grantable_bytes: int | None = None  #: of the budget, what a trial can get at most: the rest is the driver's
    shrinkable_bytes: int = 0  #: what its running trials could give back for one that waits
    mps: MpsState | None = None  #: None: it was not asked for
    beat_at: float = 0.0  #: seconds since the epoch, by the worker's clock

    @property
    def open_bytes(self) -> int:
        """Return what a new trial could have: what is free, and what running ones give back once somebody waits.

        On a device that is kept free for a trial it is less: what does not delay that one.
        """
        if self.earmark and self.room_bytes is not None:
            return self.room_bytes
        return self.free_bytes + self.shrinkable_bytes

    @property
    def held_up(self) -> tuple[str, ...]:
        """Return what holds trials up here, those that are to start and those that run, a line for each."""
        running = (f"{item.study}/{item.number} does nothing: {item.trouble}" for item in self.running if item.trouble)
        return (*self.troubles, *running)

    def to_json(self) -> dict[str, Any]:
        """Return the record as a dict that `json.dumps` takes."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        """Read a record back; keys that a newer worker added are dropped."""
        values = _known(cls, raw)
        values["running"] = tuple(RunningTrial.from_json(item) for item in values.get("running", ()))
        values |= {name: tuple(values[name]) for name in _TUPLES if name in values}
        if values.get("mps") is not None:
            values["mps"] = MpsState.from_json(values["mps"])
        return cls(**values)


#: Fields that JSON gives back as lists.
_TUPLES = ("unknown", "leftovers", "troubles", "capabilities", "full_submissions")


def _known(cls: type[Any], raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key in cls.__dataclass_fields__}


def _place(record: WorkerRecord) -> str:
    """Name a device among those of all hosts. A card's UUID does so by itself; every host has a "cpu"."""
    if record.device_id.startswith(("GPU-", "MIG-")):
        return record.device_id
    return f"{record.device_id}@{record.host}"


def _has_news_of_room(record: WorkerRecord, before: WorkerRecord | None) -> bool:
    """True when one more trial may be asked for now than before; figures that only waver say nothing.

    That is when there is more room, and when what waited for it was taken and some is left.
    """
    if record.state != "ready":
        return False
    if before is None or before.state != "ready" or len(record.running) < len(before.running):
        return True
    known = {(trial.study, trial.number) for trial in before.running}
    taken = any((trial.study, trial.number) not in known for trial in record.running)  # or as many may have ended too
    if taken and len(record.running) < record.slots and record.open_bytes > 0:
        return True
    return record.slots > before.slots or record.open_bytes - before.open_bytes > record.budget_bytes * _WAVER


class Registry:
    """The records of a pool's workers. Each ends by itself when its worker falls silent."""

    def __init__(self, connection: redis.Redis, pool: str) -> None:
        self._connection = connection
        self._names = Names(pool)
        self._read: dict[bytes, WorkerRecord] = {}  #: as read last, by what was written
        self._told: WorkerRecord | None = None  #: as written last

    @talks_to_redis
    def beat(self, record: WorkerRecord, ttl_s: float) -> bool:
        """Write a worker's record, which ends after `ttl_s` without another; return whether it told of room.

        Round trips: 1.

        Whoever waits for room is told when there is more of it than was written last, and when a trial was taken and
        some is left: a pool of many small trials would fill by one a second otherwise. That a trial has ended is told
        earlier, before its memory is back, and says nothing of room.
        """
        names = self._names
        keys = [names.worker_prefix + record.name, names.workers, names.budgets, names.budgets_seen]
        body = json.dumps(record.to_json(), separators=(",", ":"))
        ttl_ms = int(ttl_s * 1000)
        largest_bytes = record.budget_bytes if record.grantable_bytes is None else record.grantable_bytes
        more = hint(ROOM) if _has_news_of_room(record, self._told) else ""
        args: list[Word] = [record.name, body, ttl_ms, _place(record), largest_bytes, BUDGET_KEPT_S * 1000]
        run_script(self._connection, "beat", keys, [*args, names.news, more])
        self._told = record
        return bool(more)

    @talks_to_redis
    def remove(self, name: str) -> None:
        """Take a worker's record away, when it ends in order. Round trips: 1."""
        with self._connection.pipeline() as pipeline:
            pipeline.delete(self._names.worker_prefix + name)
            pipeline.zrem(self._names.workers, name)
            pipeline.execute()

    @talks_to_redis
    def workers(self) -> list[WorkerRecord]:
        """Return the records of live workers by name. Round trips: 1. One that cannot be read is left out."""
        read: dict[bytes, WorkerRecord] = {}
        for body in run_script(self._connection, "workers", [self._names.workers], [self._names.worker_prefix]):
            if not body:  # its life ended, the set is cleaned by the others' beats
                continue
            try:
                # Most have not changed since the last look: reading 1 000 anew takes longer than asking for a trial.
                read[body] = self._read.get(body) or WorkerRecord.from_json(json.loads(body))
            except (ValueError, TypeError, AttributeError):  # written by a much older or newer version
                continue
        self._read = read
        return list(read.values())

    @talks_to_redis
    def largest_budget(self, now: float) -> int | None:
        """Return the largest budget of any device that was there within 24 h, in bytes; None: there was none.

        Round trips: 1.

        Args:
            now: Seconds since the epoch.
        """
        with self._connection.pipeline() as pipeline:
            pipeline.zrangebyscore(self._names.budgets_seen, (now - BUDGET_KEPT_S) * 1000, "+inf")
            pipeline.hgetall(self._names.budgets)
            seen, budgets = pipeline.execute()
        return max((int(budgets[device]) for device in seen if device in budgets), default=None)
