"""How many trials wait: pure. A stale proposal is a worse one, so one is asked for only when a device can start it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vrampool.queueing import WorkerRecord
from vrampool.storage import SubmissionState

if TYPE_CHECKING:
    from vrampool.coordinator.tender import Tender


#: So many others are asked for before one more may wait for a device of its own.
_OTHERS_FOR_ONE = 2


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


class Rooms:
    """What the devices can take, for one who looks again and again: most have not changed, as their records tell."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[WorkerRecord, Room]] = {}

    def of(self, records: Iterable[WorkerRecord]) -> list[Room]:
        """Return what `rooms_of` does, for records of which those that have not changed are the same objects."""
        known, self._known = self._known, {}
        rooms = []
        for record in records:
            if record.state != "ready":
                continue
            seen = known.get(record.name)
            if seen is None or seen[0] is not record:
                seen = (record, rooms_of([record])[0])
            self._known[record.name] = seen
            rooms.append(seen[1])
        return rooms


def fits(request_bytes: int | None, room: Room) -> bool:
    """True when the device could start the request now. None asks for a whole device."""
    if room.slots <= 0:
        return False
    return room.idle if request_bytes is None else request_bytes <= room.free_bytes


class Outlook:
    """Whether one more trial should be asked for, and one more after that: each is put beside those that wait.

    One is while some device has room for the submission's smallest predicted request and no waiting trial is left
    for it, and at most one trial more waits than there are devices. Quality of generation-based samplers falls with
    every trial that waits (a depth of 4 cost CMA-ES 30 % of its result), and hand-over takes milliseconds.

    Trials that wait for a device of their own are counted apart, up to two more than devices: others run meanwhile,
    and a device that is drained for one of them takes the next ones too. A drain for each leaves it empty each time.
    Where they are few among others there may be more: one for two others that were asked for since the first of them.
    The sampler hears of those, and as long as there are any no device is drained for want of work.

    Every device is looked at once, whatever number of trials is asked for: it takes the first that fits of those that
    wait, or is passed, and then only new ones can be for it.

    Args:
        rooms: Of all devices that take trials, in the order in which they are filled.
        waiting: Requests of the trials that wait, in their order.
        beside: Others that were asked for since the first of those that wait for a device of their own.
    """

    def __init__(self, rooms: Sequence[Room], waiting: Sequence[int | None], beside: int = 0) -> None:
        self._most = len(rooms) + 1 if rooms else 0
        self._most_alone = max(self._most, beside // _OTHERS_FOR_ONE)
        self._alone = sum(request is None for request in waiting)
        self._others = len(waiting) - self._alone
        self._left = list(waiting)
        self._ahead = deque(room for room in rooms if room.slots > 0 and (room.idle or room.free_bytes > 0))
        self._passed: list[Room] = []  #: nothing that waits fits them

    def wants(self, smallest: int | None) -> bool:
        """Return whether one more should be asked for, if it may be as small as that."""
        if not self._most or self._alone > self._most_alone or self._others >= self._most:
            return False
        if any(fits(smallest, room) for room in self._passed):
            return True
        while self._ahead:
            room = self._ahead.popleft()
            if not self._take(room) and fits(smallest, room):
                return True
        return False

    def add(self, request: int | None) -> None:
        """Take in that one more waits, behind all others."""
        if request is None:
            self._alone += 1
        else:
            self._others += 1
        for position, room in enumerate(self._passed):
            if fits(request, room):
                del self._passed[position]
                return
        self._left.append(request)

    def _take(self, room: Room) -> bool:
        """Let a device take the first that fits; else it is passed."""
        for position, request in enumerate(self._left):
            if fits(request, room):
                del self._left[position]
                return True
        self._passed.append(room)
        return False


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
