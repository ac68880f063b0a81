"""Which worker is called to which trial that waits: pure. Who hears nothing asks nothing.

A trial is called out to one worker that has room for it, as far as its record tells: with 1 000 devices all of them
asked before, for each. Those that hear nothing come by every two seconds, so a call that goes wrong costs little time.
It is mended sooner: with every look each trial that still waits is given to a worker anew, and whoever was called and
did not come is given something only when nobody else has room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vrampool.queueing import WorkerRecord

#: Whoever was called has this long to take a trial before another one is called.
TURN_S = 0.3
#: Whoever did not come then comes last for so long.
LATE_S = 10.0


@dataclass(frozen=True)
class Waiting:
    """A trial that waits."""

    job_id: str
    submission_id: str
    request_bytes: int | None  #: None: exclusive
    avoid: str = ""  #: a device that it shall not go to at once


@dataclass(frozen=True)
class _Called:
    worker: str  #: nobody: none had room
    at_s: float


class _Place:
    """A device that could take something, and has not been given anything."""

    def __init__(self, record: WorkerRecord) -> None:
        self.name = record.name
        self.open_bytes = record.open_bytes
        self._device_id = record.device_id
        self._idle = not record.running and not record.earmark
        self._not_for = record.refused.keys() | frozenset(record.full_submissions)

    @property
    def is_open(self) -> bool:
        return self._idle or self.open_bytes > 0

    def suits(self, trial: Waiting) -> bool:
        if trial.submission_id in self._not_for or trial.avoid == self._device_id:
            return False
        return self._idle if trial.request_bytes is None else trial.request_bytes <= self.open_bytes


class Calls:
    """Gives trials that wait to workers. A look begins with `look_at`, and goes on with `again` before any `new`."""

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._called: dict[str, _Called] = {}
        self._late: dict[str, float] = {}  #: when workers were found not to have come, by their names

    def look_at(self, records: Iterable[WorkerRecord]) -> None:
        """Take in what the workers can take now."""
        found = (_Place(record) for record in records if record.state == "ready" and record.slots > len(record.running))
        self._places = [place for place in found if place.is_open]

    def new(self, trial: Waiting, now_s: float) -> list[str]:
        """Return whom to call to a trial that comes into the queue now; nobody where none has room."""
        place = self._give(trial)
        name = place.name if place is not None else ""
        self._called[trial.job_id] = _Called(name, now_s)
        return [name] if name else []

    def again(self, waiting: Sequence[Waiting], now_s: float) -> list[str]:
        """Return whom to call to those that wait already.

        Args:
            waiting: All of them, in the order of the queue.
            now_s: Seconds, of the clock that `new` has.
        """
        called = {trial.job_id: self._called[trial.job_id] for trial in waiting if trial.job_id in self._called}
        overdue = {job_id for job_id, call in called.items() if call.worker and now_s - call.at_s > TURN_S}
        self._late |= {called[job_id].worker: now_s for job_id in overdue}
        self._late = {name: at_s for name, at_s in self._late.items() if now_s - at_s < LATE_S}
        self._places.sort(key=lambda place: place.name in self._late)  # a stable sort: the order stays otherwise
        self._called, names = called, []
        for trial in waiting:
            place, call = self._give(trial), called.get(trial.job_id)
            if place is None:
                continue
            if call is None or not call.worker or (trial.job_id in overdue and place.name != call.worker):
                called[trial.job_id] = _Called(place.name, now_s)
                names.append(place.name)
        return names

    def _give(self, trial: Waiting) -> _Place | None:
        for position, place in enumerate(self._places):
            if place.suits(trial):
                return self._places.pop(position)
        return None
