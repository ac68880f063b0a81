"""Which worker is called to which trial that waits: pure. Each that was called for nothing has asked for nothing.

A trial is called out to one worker that has room for it, as far as its record tells. All others hear nothing; they
come by every two seconds. So a call that goes wrong costs little time, and is mended sooner: with every look each
trial that still waits is given to a worker anew, who is called if it is another one, and after a second all are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vrampool.queueing import WorkerRecord

#: Whoever was called has this long to take a trial before another one is called.
TURN_S = 0.3
#: What waits for longer, though there is room for it, is called out to everybody. Once: then they come by themselves.
EVERYBODY_S = 1.0


@dataclass(frozen=True)
class Waiting:
    """A trial that waits."""

    job_id: str
    submission_id: str
    request_bytes: int | None  #: None: exclusive
    avoid: str = ""  #: a device that it shall not go to at once


@dataclass
class _Called:
    worker: str
    first_s: float
    at_s: float
    everybody: bool = False


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
    """Gives trials that wait to workers. `look_at` begins each look."""

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._called: dict[str, _Called] = {}

    def look_at(self, records: Iterable[WorkerRecord]) -> None:
        """Take in what the workers can take now."""
        found = (_Place(record) for record in records if record.state == "ready" and record.slots > len(record.running))
        self._places = [place for place in found if place.is_open]

    def new(self, trial: Waiting, now_s: float) -> list[str]:
        """Return whom to call to a trial that comes into the queue now; nobody where none has room."""
        place = self._give(trial)
        name = place.name if place is not None else ""
        self._called[trial.job_id] = _Called(name, now_s, now_s)
        return [name] if name else []

    def again(self, waiting: Sequence[Waiting], now_s: float) -> list[str] | None:
        """Return whom to call to those that wait already; None: everybody.

        Args:
            waiting: All of them, in the order of the queue.
            now_s: Seconds, of the clock that `new` has.
        """
        self._called = {trial.job_id: self._called[trial.job_id] for trial in waiting if trial.job_id in self._called}
        names: list[str] | None = []
        for trial in waiting:
            place, called = self._give(trial), self._called.get(trial.job_id)
            if place is None:
                continue
            if called is None:  # by an earlier leader, or all were: a retry
                self._called[trial.job_id] = _Called(place.name, now_s, now_s)
            elif now_s - called.first_s > EVERYBODY_S and not called.everybody:
                called.everybody, names = True, None
            elif place.name != called.worker and (not called.worker or now_s - called.at_s > TURN_S):
                called.worker, called.at_s = place.name, now_s
                names = [*names, place.name] if names is not None else None
        return names

    def _give(self, trial: Waiting) -> _Place | None:
        for position, place in enumerate(self._places):
            if place.suits(trial):
                return self._places.pop(position)
        return None
