"""The beat: a thread with its own Redis connection that says "I live" for the worker and for every trial it runs.

Nothing else is done there, so that neither a database, nor a driver, nor a child can make a living worker look dead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from vrampool.queueing import TransientRedisError, WorkerRecord

_log = logging.getLogger("vrampool.worker")


@dataclass(frozen=True)
class Held:
    """What the worker holds now: made by the main loop, swapped whole, read by the beat."""

    record: WorkerRecord
    jobs: tuple[str, ...] = ()  #: job ids with a liveness lease
    executions: tuple[tuple[str, str], ...] = ()  #: (job id, RQ execution id)
    urgent: bool = True  #: not only figures have changed: it is told before the next beat


@dataclass(frozen=True)
class Heard:
    """What a beat brought back."""

    lost: tuple[str, ...] = ()  #: job ids that another worker holds by now
    largest_budget_bytes: int | None = None  #: of the pool's devices within 24 h
    suspended: bool = False  #: `rq suspend`
    was_away: bool = False  #: the beat before was longer ago than a lease lives: trials may have been given to others


class Pulse(Protocol):
    """One beat's work with Redis (`vrampool_worker.rq_worker.Pulse`)."""

    def beat(self, held: Held) -> Heard: ...

    def news(self, held: Held) -> None: ...


class Beat:
    """Beats every `interval_s`, and sooner when the main loop has news for the coordinator.

    Args:
        pulse: Does the beat.
        interval_s: Pause between two beats.
        ttl_s: Life of a liveness lease.
        on_heard: Called in the beat's thread with what came back; it only posts to the main loop.
    """

    #: News are sent at most this often: a burst of tiny trials is one message. The first of a burst is sent at once:
    #: a device with room for one more trial stands still until the coordinator knows.
    NEWS_S = 0.05

    def __init__(
        self, pulse: Pulse, held: Held, *, interval_s: float, ttl_s: float, on_heard: Callable[[Heard], None]
    ) -> None:
        self.held = held  #: replaced by the main loop
        self.last_s = time.monotonic()  #: when Redis last took a beat
        self._pulse = pulse
        self._interval_s = interval_s
        self._ttl_s = ttl_s
        self._on_heard = on_heard
        self._beating = threading.Lock()
        self._forgotten: set[str] = set()
        self._news = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vrampool-beat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, held: Held) -> None:
        """Give it what is held now and have it told, soon if it is urgent."""
        self.held = held
        self._forgotten &= set(held.jobs)
        if held.urgent:
            self._news.set()

    def forget(self, job_id: str) -> None:
        """Renew this job no more, from now on: a beat that is under way is waited for.

        Called before a job's end is written. A beat that came after it would write the job's keys anew.
        """
        with self._beating:
            self._forgotten.add(job_id)

    def _living(self) -> Held:
        held = self.held
        if not self._forgotten:
            return held
        jobs = tuple(job for job in held.jobs if job not in self._forgotten)
        executions = tuple(pair for pair in held.executions if pair[0] not in self._forgotten)
        return Held(held.record, jobs, executions)

    def stop(self) -> None:
        self._stopped.set()
        self._news.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        self.last_s = due_s = time.monotonic()
        away_since_s: float | None = None
        while not self._stopped.is_set():
            self._news.clear()
            now_s = time.monotonic()
            was_away = now_s - self.last_s > self._ttl_s
            try:
                if now_s < due_s:  # between two beats the coordinator is told what changed, and no more
                    self._pulse.news(self.held)
                    self._rest(now_s, due_s)
                    continue
                due_s = now_s + self._interval_s
                with self._beating:
                    heard = self._pulse.beat(self._living())
                if away_since_s is not None:
                    _log.warning("Redis answers again after %.1f s", now_s - away_since_s)
                    away_since_s = None
                if was_away:
                    heard = Heard(heard.lost, heard.largest_budget_bytes, heard.suspended, True)
                self.last_s = now_s
                self._on_heard(heard)
                self._rest(now_s, due_s)
            except TransientRedisError as error:
                due_s = now_s
                if away_since_s is None:
                    away_since_s = now_s
                    _log.warning("%s; running trials go on", error)
                self._stopped.wait(min(0.5, self._interval_s))
            except Exception:
                _log.exception("a beat failed")
                self._stopped.wait(self._interval_s)

    def _rest(self, told_s: float, due_s: float) -> None:
        """Wait for news or the next beat, and for the end of the pause since Redis was told last."""
        self._news.wait(max(0.0, due_s - time.monotonic()))
        self._stopped.wait(max(0.0, told_s + self.NEWS_S - time.monotonic()))
