"""Whatever happens in whatever order: a trial that has not ended is in exactly one place, or can be put there."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import pytest
from rq import Queue
from rq.intermediate_queue import IntermediateQueue
from rq.registry import StartedJobRegistry
from rq.worker import SimpleWorker
from support.valkey import SIGNER, ticket

from vrampool.queueing import (
    JobQueue,
    Liveness,
    Offer,
    SignedSerializer,
    begin,
    discard,
    finish,
    give_back,
    put_back,
    renew,
    take,
)
from vrampool.queueing.names import Names

TRIALS = 12
STEPS = 150


@dataclass
class Held:
    """A job in a worker's hands, as that worker believes."""

    lease_id: str
    worker: str
    execution_id: str | None = None
    forgotten: bool = False  #: Redis came back empty since it was taken


@dataclass
class World:
    """Coordinator, workers and passers-by that act in a random order."""

    connection: object
    pool: str
    random: random.Random
    held: dict[str, Held] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    leases: itertools.count = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.names = Names(self.pool)
        self.queue = JobQueue(self.connection, self.pool, SIGNER)
        self.liveness = Liveness(self.connection, self.pool)
        self.tickets = {f"sub1-{n}": ticket(self.pool, n) for n in range(TRIALS)}
        serializer = SignedSerializer(SIGNER)
        self.rq_queue = Queue(self.pool, connection=self.connection, serializer=serializer)
        self.passer_by = SimpleWorker([self.rq_queue], connection=self.connection, serializer=serializer)

    # ---- what may happen ---------------------------------------------------------------------------

    def reconcile(self) -> None:
        """The coordinator enqueues what waits and is unknown."""
        waiting = [job_id for job_id in self.tickets if job_id not in self.ended]
        known = self.queue.known(waiting)
        lost = [self.tickets[job_id] for job_id in waiting if job_id not in known]
        self.queue.enqueue(lost, front=self.random.random() < 0.5)

    def take(self) -> None:
        worker = f"w{self.random.randrange(3)}"
        offer = Offer(worker, f"L{next(self.leases)}", 10**9, idle=True, ttl_ms=600_000)
        taken = take(self.connection, self.pool, offer)
        if taken is not None:
            if self.random.random() < 0.3:  # the reply was lost and the command sent again
                assert take(self.connection, self.pool, offer).job_id == taken.job_id
            assert taken.job_id not in self.held, "taken from the hands of a live worker"
            self.held[taken.job_id] = Held(offer.lease_id, worker)

    def one(self, begun: bool) -> tuple[str, Held] | None:
        choice = [item for item in self.held.items() if (item[1].execution_id is not None) is begun]
        return self.random.choice(choice) if choice else None

    def let_go(self, job_id: str) -> None:
        """The worker renews its lease no more; where Redis had forgotten the job, the lease ends by its time."""
        if self.held.pop(job_id).forgotten:
            self.connection.delete(self.names.live(job_id))

    def begin(self) -> None:
        if found := self.one(begun=False):
            job_id, held = found
            held.execution_id = begin(self.connection, self.pool, job_id, held.worker, 600)
            assert held.execution_id

    def undo(self) -> None:
        if found := self.one(begun=False):
            job_id, held = found
            front = self.random.random() < 0.5
            undone = put_back(self.connection, self.pool, job_id, held.lease_id, front=front)
            assert undone is not held.forgotten
            assert put_back(self.connection, self.pool, job_id, held.lease_id, front=front) is False
            self.let_go(job_id)

    def discard(self) -> None:
        if found := self.one(begun=False):
            assert discard(self.connection, self.pool, found[0], found[1].lease_id) is not found[1].forgotten
            self.ended.add(found[0])
            self.let_go(found[0])

    def finish(self) -> None:
        if found := self.one(begun=True):
            job_id, held = found
            for _ in range(self.random.choice((1, 2))):
                assert finish(self.connection, self.pool, job_id, held.worker, held.execution_id, "finished")
            self.ended.add(job_id)
            del self.held[job_id]

    def give_back(self) -> None:
        if found := self.one(begun=True):
            job_id, held = found
            assert give_back(self.connection, self.pool, job_id, held.worker, held.execution_id)
            del self.held[job_id]

    def lose_worker(self) -> None:
        """A worker dies with what it holds: its leases run out."""
        worker = f"w{self.random.randrange(3)}"
        for job_id in [job_id for job_id, held in self.held.items() if held.worker == worker]:
            self.connection.delete(self.names.live(job_id))
            del self.held[job_id]

    def lose_redis(self) -> None:
        """Redis comes back empty; workers write their leases before anything else."""
        self.connection.flushall()
        for held in self.held.values():
            held.forgotten = True
        self.beat()

    def beat(self) -> None:
        assert self.liveness.renew({job_id: held.worker for job_id, held in self.held.items()}, 600_000) == []
        for worker in ("w0", "w1", "w2"):
            mine = [(j, h.execution_id) for j, h in self.held.items() if h.worker == worker and h.execution_id]
            renew(self.connection, self.pool, worker, mine, 600)

    def pass_by(self) -> None:
        """Somebody runs RQ's own clean-up."""
        IntermediateQueue(self.rq_queue.key, self.connection).cleanup(self.passer_by, self.rq_queue)
        assert StartedJobRegistry(self.pool, connection=self.connection).count >= 0

    # ---- what must hold ----------------------------------------------------------------------------

    def check(self) -> None:
        waiting = [job_id.decode() for job_id in self.connection.lrange(self.names.waiting, 0, -1)]
        assert len(waiting) == len(set(waiting)), "in the list twice"
        alive = self.liveness.alive(self.tickets)
        for job_id in self.tickets:
            is_held = job_id in self.held
            assert alive[job_id] is is_held
            assert not (is_held and job_id in waiting), "waits while a worker holds it"
            assert not (job_id in self.ended and job_id in waiting), "waits though it ended"

    def check_after_reconciling(self) -> None:
        self.reconcile()
        self.check()
        waiting = {job.job_id for job in self.queue.waiting()}
        assert waiting == set(self.tickets) - self.ended - set(self.held)
        intermediate = [job_id.decode() for job_id in self.connection.lrange(self.names.intermediate, 0, -1)]
        assert set(intermediate) <= {job_id for job_id, held in self.held.items() if held.execution_id is None}


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_events_loses_or_doubles_a_trial(connection, pool, seed):
    chance = random.Random(seed)
    world = World(connection, pool, chance)
    steps = [
        *[world.reconcile] * 2,
        *[world.take] * 5,
        *[world.begin] * 4,
        world.undo,
        world.discard,
        *[world.finish] * 2,
        world.give_back,
        world.lose_worker,
        world.lose_redis,
        world.beat,
        world.pass_by,
    ]
    for number in range(STEPS):
        if len(world.ended) > TRIALS // 2:
            world.ended.clear()  # as if they were new trials
            world.lose_redis()
        chance.choice(steps)()
        world.check()
        if number % 10 == 0:
            world.check_after_reconciling()
