"""Redis and RQ: the waiting trials of a pool, who holds them, who works, who leads. Nothing else talks to either.

Redis is a cache of what is wanted: the truth is in the storage, and whatever Redis forgets is made again by calling
the same functions again. Every key has an end, but for the jobs that wait.
"""

from vrampool.errors import StaleLeaderError
from vrampool.queueing.connection import TransientRedisError, connect
from vrampool.queueing.demand import Demand
from vrampool.queueing.events import ENQUEUED, ROOM, Events, Subscription, calls
from vrampool.queueing.executions import JobOutcome, begin, finish, give_back, renew
from vrampool.queueing.history import History, ReleaseSummary, summarise
from vrampool.queueing.job_queue import JobQueue, WaitingJob
from vrampool.queueing.jobs import SignedSerializer
from vrampool.queueing.leadership import Leadership
from vrampool.queueing.liveness import Liveness
from vrampool.queueing.outputs import Outputs, Piece
from vrampool.queueing.overheads import Overheads
from vrampool.queueing.registry import MpsState, Registry, RunningTrial, WorkerRecord
from vrampool.queueing.roster import Roster
from vrampool.queueing.taking import Answer, Earmark, Offer, Taken, ask, discard, open_taken, put_back, take

__all__ = [
    "ENQUEUED",
    "ROOM",
    "Answer",
    "Demand",
    "Earmark",
    "Events",
    "History",
    "JobOutcome",
    "JobQueue",
    "Leadership",
    "Liveness",
    "MpsState",
    "Offer",
    "Outputs",
    "Overheads",
    "Piece",
    "Registry",
    "ReleaseSummary",
    "Roster",
    "RunningTrial",
    "SignedSerializer",
    "StaleLeaderError",
    "Subscription",
    "Taken",
    "TransientRedisError",
    "WaitingJob",
    "WorkerRecord",
    "ask",
    "begin",
    "calls",
    "connect",
    "discard",
    "finish",
    "give_back",
    "open_taken",
    "put_back",
    "renew",
    "summarise",
    "take",
]
