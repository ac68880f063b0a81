"""What a worker asks the queue for, and what it hears besides a trial."""

from __future__ import annotations

import logging
import math
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vrampool import queueing
from vrampool.messages import Ticket
from vrampool_worker.attempts import Stage
from vrampool_worker.ledger import Earmark, Offer, words

if TYPE_CHECKING:
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")
_RUNS = (Stage.OPENING, Stage.AWAITING, Stage.RUNNING)


@dataclass(frozen=True)
class Asked:
    """The queue's answer, its ticket checked."""

    found: tuple[queueing.Taken, Ticket] | None
    earmark: queueing.Earmark | None = None  #: what the device is kept free for
    smallest_bytes: int | None = None  #: the least that lacks nothing but memory here; None: no such trial was seen


def question(loop: WorkerLoop, offer: Offer, now_s: float) -> queueing.Offer:
    """Put what the ledger offers into a question to the queue."""
    earmark = loop.ledger.earmark
    return queueing.Offer(
        worker=loop.name,
        lease_id=uuid.uuid4().hex,
        free_bytes=offer.free_bytes,
        idle=offer.idle,
        ttl_ms=int(loop.settings.lease_ttl_s * 1000),
        device_id=loop.device.id,
        device_kind=loop.device.kind,
        refuse_submissions=(*loop.refused, *full_submissions(loop)),
        most_bytes=loop.ledger.most_bytes(now_s),
        trials=len(loop.attempts),
        earmark=earmark.job_id if earmark else "",
        room_bytes=offer.room_bytes,
        age_limit_ms=int(loop.settings.age_limit_s * 1000),
    )


def full_submissions(loop: WorkerLoop) -> list[str]:
    """Return the submissions that have as many trials here as they allow on one device.

    What a submission allows is read with its first trial; until that is open a second one is not asked for.
    """
    running = Counter(item.ticket.submission_id for item in loop.attempts.values() if item.stage in _RUNS)
    return [name for name, count in running.items() if count >= (loop.device_limits.get(name, 1) or math.inf)]


def hear(loop: WorkerLoop, asked: Asked) -> bool:
    """Tell the ledger what the device is kept free for. True: that is news, and the offer another one than before."""
    kept = asked.earmark
    earmark = Earmark(kept.job_id, kept.vram_bytes, kept.label) if kept else None
    if not loop.ledger.keep_for(earmark):
        return False
    if earmark:
        _log.info("%s", words.kept(loop.device.label, earmark))
    return True
