"""What a worker does with the job queue, in its queue lane: take, begin, finish. One method, one round trip."""

from __future__ import annotations

from typing import Any

from vrampool.errors import MessageError
from vrampool.messages import Ticket
from vrampool.queueing import (
    Events,
    History,
    Offer,
    Outputs,
    Overheads,
    Piece,
    Taken,
    ask,
    begin,
    discard,
    finish,
    open_taken,
    put_back,
)
from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.names import Names
from vrampool.signing import Signer
from vrampool_worker.asking import Asked


class QueuePort:
    """The job queue of one pool, for one worker. Every method blocks, and runs in one thread.

    Args:
        connection: A Redis connection of its own.
        pool: The pool's name.
        worker: The worker's name.
        signer: Checks tickets.
        execution_ttl_s: How long RQ takes an execution for alive without another beat.
    """

    def __init__(self, connection: Any, pool: str, worker: str, signer: Signer, *, execution_ttl_s: int) -> None:
        self._connection = connection
        self._pool = pool
        self._worker = worker
        self._signer = signer
        self._execution_ttl_s = execution_ttl_s
        self._history = History(connection, pool)
        self._overheads = Overheads(connection, pool)
        self._events = Events(connection, pool)
        self._outputs = Outputs(connection, pool)
        self._doubtful: set[str] = set()
        self.refused: dict[str, str] = {}  #: submissions whose jobs this worker cannot trust: id -> reason

    def take(self, offer: Offer) -> tuple[Taken, Ticket] | None:
        """Take a trial as `ask` does, and leave aside what else is heard."""
        return self.ask(offer).found

    def ask(self, offer: Offer) -> Asked:
        """Take a trial that fits, and hear what the device is kept free for.

        What is not signed by this pool is thrown away: the coordinator makes the job of a trial that waits anew. Is the
        new one refused as well, then it is not the job that is wrong, but the secret or the version of one of the two
        sides: it is left for other workers.

        Raises:
            MessageError: what was taken is refused.
        """
        answer = ask(self._connection, self._pool, offer)
        taken = answer.taken
        if taken is None:
            return Asked(None, answer.earmark, answer.smallest_bytes)
        try:
            ticket = open_taken(self._signer, self._pool, taken)
            return Asked((taken, ticket), answer.earmark, answer.smallest_bytes)
        except MessageError as error:
            if taken.job_id in self._doubtful:
                self.refused[taken.submission_id] = str(error)
                self.put_back(taken.job_id, offer.lease_id, refused=True)
            else:
                self._doubtful.add(taken.job_id)
                self.discard(taken.job_id, offer.lease_id)
            text = str(error)
            raise MessageError(text if taken.job_id in text else f"job {taken.job_id}: {text}") from None

    def begin(self, job_id: str) -> str | None:
        """Enter a claimed trial into RQ's books. Returns the execution's id; None: another worker holds the job."""
        return begin(self._connection, self._pool, job_id, self._worker, self._execution_ttl_s)

    def finish(self, job_id: str, execution_id: str, outcome: str, text: str, run_s: float) -> None:
        """Close RQ's books on a trial: "finished", "failed" or "stopped"."""
        finish(self._connection, self._pool, job_id, self._worker, execution_id, outcome, text, run_s=run_s)

    def put_back(self, job_id: str, lease_id: str, *, refused: bool = False) -> None:
        """Undo a take; `refused`: this worker can never run it."""
        put_back(self._connection, self._pool, job_id, lease_id, refused_by=self._worker if refused else None)

    def discard(self, job_id: str, lease_id: str) -> None:
        """Throw away a job whose trial is not waiting any more."""
        discard(self._connection, self._pool, job_id, lease_id)

    @talks_to_redis
    def more_than(self, trials: int) -> bool | None:
        """Whether more trials than so many wait, run, or could run at once, in all the pool; None: nobody has told."""
        demand = Names(self._pool).demand
        if self._connection.lrange(demand, trials, trials):
            return True
        return False if self._connection.exists(demand) else None

    def read_overhead(self, key: str) -> int | None:
        """Return the overhead that was learned on such a device before; see `Overheads`."""
        return self._overheads.read(key)

    def keep_overhead(self, key: str, overhead_bytes: int) -> None:
        self._overheads.keep(key, overhead_bytes)

    def add_sample(self, device_id: str, sample: dict[str, Any]) -> None:
        self._history.add_sample(device_id, sample)

    def add_release(self, release: dict[str, Any]) -> None:
        self._history.add_release(release)

    def show_output(self, reader: str, pieces: list[Piece]) -> None:
        """Show a reader what a trial has printed."""
        self._outputs.show(reader, pieces)

    def tell(self, event: dict[str, Any]) -> None:
        """Tell everybody who listens."""
        self._events.publish(event)

    def answer(self, event: dict[str, Any]) -> None:
        """Tell those who watch the pool: one of them has asked for something."""
        self._events.tell(event)
