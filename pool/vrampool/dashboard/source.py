"""Where the page gets its data: the one place of this package that asks Redis and the storage."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from vrampool.errors import MessageError
from vrampool.messages import SubmissionSpec
from vrampool.queueing import Events, History, JobQueue, Registry, WaitingJob, WorkerRecord, connect
from vrampool.settings import Settings
from vrampool.signing import load_secret, open_spec
from vrampool.storage import Catalog, SubmissionRow, open_storage

_log = logging.getLogger("vrampool.dashboard")
#: Studies that are shown, the ones with the newest submissions.
MOST_STUDIES = 24
#: A study whose submissions have all ended is read again after so long: somebody may go on with it without the pool.
ENDED_AGAIN_S = 30.0


@dataclass(frozen=True)
class Submission:
    """One submission, its signature checked."""

    row: SubmissionRow
    spec: SubmissionSpec


@dataclass(frozen=True)
class StudyReading:
    """A study as it was read just now."""

    name: str
    directions: tuple[str, ...]  #: "minimize" or "maximize"
    submissions: tuple[Submission, ...]  #: oldest first
    trials: tuple[FrozenTrial, ...]  #: all of the study, others' too

    @property
    def live(self) -> bool:
        return any(not item.row.state.final for item in self.submissions)


class Source(Protocol):
    """What the page is made from. Methods may block, and raise `TransientRedisError` or `TransientStorageError`."""

    pool: str  #: the pool's name

    def workers(self) -> list[WorkerRecord]: ...

    def waiting(self) -> list[WaitingJob]: ...

    def samples(self, device_id: str, since: float) -> list[dict[str, Any]]: ...

    def releases(self) -> list[dict[str, Any]]: ...

    def studies(self) -> list[StudyReading]:
        """Return the studies of the pool, the one with the newest submission first."""
        ...


class PoolSource:
    """A pool that runs.

    Args:
        settings: With `redis` and `storage` filled in.

    Raises:
        UnreachableError: Redis or the database does not answer.
        SettingsError: the pool's secret is not here.
    """

    def __init__(self, settings: Settings) -> None:
        assert settings.redis is not None and settings.storage is not None
        self.pool = settings.pool
        self._signer = load_secret(settings, create=False)
        self._connection = connect(settings.redis, role="dashboard")
        self.storage = open_storage(settings.storage, create_schema=True)
        self.registry = Registry(self._connection, settings.pool)
        self.events = Events(self._connection, settings.pool, self._signer)
        self.catalog = Catalog(self.storage)
        self._history = History(self._connection, settings.pool)
        self._queue = JobQueue(self._connection, settings.pool, self._signer)
        self._specs: dict[str, SubmissionSpec | None] = {}
        self._ended: dict[str, tuple[float, StudyReading]] = {}

    def close(self) -> None:
        self._connection.close()
        self.storage.close()

    def workers(self) -> list[WorkerRecord]:
        return self.registry.workers()

    def waiting(self) -> list[WaitingJob]:
        return self._queue.waiting()

    def samples(self, device_id: str, since: float) -> list[dict[str, Any]]:
        return self._history.samples(device_id, since)

    def releases(self) -> list[dict[str, Any]]:
        return self._history.releases(limit=1_000)

    def studies(self) -> list[StudyReading]:
        found: dict[str, list[Submission]] = {}
        for item in self._submissions():
            found.setdefault(item.row.study_name, []).append(item)
        newest = sorted(found, key=lambda name: found[name][-1].row.sequence, reverse=True)[:MOST_STUDIES]
        self._ended = {name: kept for name, kept in self._ended.items() if name in newest}
        readings = [self._read(name, tuple(found[name])) for name in newest]
        return [reading for reading in readings if reading is not None]

    def _submissions(self) -> Iterator[Submission]:
        for row in self.catalog.submissions():
            if row.id not in self._specs:
                try:
                    self._specs[row.id] = open_spec(self._signer, row.id, row.spec_text)
                except MessageError as error:
                    _log.warning("submission %s of study %s is left out: %s", row.id, row.study_name, error)
                    self._specs[row.id] = None
            spec = self._specs[row.id]
            if spec is not None:
                yield Submission(row, spec)

    def _read(self, name: str, submissions: tuple[Submission, ...]) -> StudyReading | None:
        now_s = time.monotonic()
        read_s, kept = self._ended.get(name, (0.0, None))
        if kept is not None and kept.submissions == submissions and now_s - read_s < ENDED_AGAIN_S:
            return kept
        try:
            study_id = self.storage.get_study_id_from_name(name)
            directions = self.storage.get_study_directions(study_id)
            trials = self.storage.get_all_trials(study_id, deepcopy=False)
        except KeyError:  # the study was deleted
            return None
        words = tuple("maximize" if item == StudyDirection.MAXIMIZE else "minimize" for item in directions)
        reading = StudyReading(name, words, submissions, tuple(trials))
        if reading.live:
            self._ended.pop(name, None)
        else:
            self._ended[name] = (now_s, reading)
        return reading
