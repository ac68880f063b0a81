"""How many trials wait: pure. A stale proposal is a worse one, so one is asked for only when a device can start it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vrampool.queueing import WorkerRecord
from vrampool.storage import SubmissionState

if TYPE_CHECKING:
    from vrampool.coordinator.tender import Tender


@dataclass(frozen=True)
class Room:
    """What one device can take now."""

    device_id: str
    free_bytes: int
    idle: bool  #: nothing runs on it, so it could take an exclusive trial
    slots: int  #: trials it may start yet


def rooms_of(records: Iterable[WorkerRecord]) -> list[Room]:
    """Return what the devices that take trials can take now; one that is kept free for a trial has less for others."""
    return [
        Room(
            record.device_id,
            record.open_bytes,
            not record.running and not record.earmark,
            record.slots - len(record.running),
        )
        for record in records
        if record.state == "ready"
    ]


def fits(request_bytes: int | None, room: Room) -> bool:
    """True when the device could start the request now. None asks for a whole device."""
    if room.slots <= 0:
        return False
    return room.idle if request_bytes is None else request_bytes <= room.free_bytes


def wants_another(rooms: Sequence[Room], waiting: Sequence[int | None], smallest: int | None) -> bool:
    """True when one more trial should be asked for.

    That is while some device has room for the submission's smallest predicted request and no waiting trial is left
    for it, and at most one trial more waits than there are devices. Quality of generation-based samplers falls with
    every trial that waits (a depth of 4 cost CMA-ES 30 % of its result), and hand-over takes milliseconds.

    Trials that wait for a device of their own are counted apart, up to two more than devices: others run meanwhile,
    and a device that is drained for one of them takes the next ones too. A drain for each leaves it empty each time.
    """
    alone = sum(request is None for request in waiting)
    most = len(rooms) + 1
    if not rooms or alone > most or len(waiting) - alone >= most:
        return False
    left = list(waiting)
    for room in rooms:
        taken = next((request for request in left if fits(request, room)), _NOTHING)
        if taken is not _NOTHING:
            left.remove(taken)
            continue
        if fits(smallest, room):
            return True
    return False


_NOTHING = -1


def owing(tenders: Sequence[Tender]) -> Sequence[Tender]:
    """Tell each submission that completes its study to a total what the others will add to it; return them all.

    An open submission of so many trials will make them all; who completes the study makes what is missing beside them.
    One without a number may end at any time and counts for nothing.
    """
    for tender in tenders:
        if tender.spec.total is not None:
            others = (other for other in tenders if other.study_id == tender.study_id and other.spec.total is None)
            owed = [other.to_come() for other in others if other.row.state == SubmissionState.OPEN]
            tender.owed_by_others = sum(count for count in owed if 0 < count < math.inf)
    return tenders
