"""Which running trials have lost their worker: judged by liveness leases, never in haste."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol


class LivenessReader(Protocol):
    """The part of `vrampool.queueing.Liveness` that is needed here."""

    def server(self) -> tuple[str, float]: ...
    def alive(self, job_ids: Iterable[str]) -> dict[str, bool]: ...


class Reaper:
    """Names trials whose liveness lease is gone in two reads a lease's life apart.

    After Redis was away, workers write their leases again before anything else; until a life and a beat after its
    return nobody is judged. The states must have been read before `lost` is called: a trial that is RUNNING had its
    lease first, so a missing lease then means a missing worker.
    """

    def __init__(self, liveness: LivenessReader, *, ttl_s: float, beat_s: float) -> None:
        self._liveness = liveness
        self._ttl_s = ttl_s
        self._quiet_s = ttl_s + beat_s
        self._run_id = ""
        self._quiet_until_s = 0.0
        self._suspects: dict[str, float] = {}

    def forgive(self, now_s: float) -> None:
        """Forget every suspicion: called when Redis could not be reached."""
        self._suspects.clear()
        self._quiet_until_s = now_s + self._quiet_s

    @property
    def due_s(self) -> float:
        """When the oldest suspicion will be old enough, by the clock of `lost`; infinite when there is none."""
        return min(self._suspects.values(), default=math.inf) + self._ttl_s

    def lost(self, running: Iterable[str], now_s: float) -> list[str]:
        """Return the job ids among `running` whose worker is gone.

        Args:
            running: Job ids of trials whose state was RUNNING a moment ago.
            now_s: The monotonic clock.
        """
        jobs = list(running)
        run_id, uptime_s = self._liveness.server()
        if run_id != self._run_id:
            if self._run_id or uptime_s < self._quiet_s:
                self.forgive(now_s)
            self._run_id = run_id
        if now_s < self._quiet_until_s:
            return []
        alive = self._liveness.alive(jobs) if jobs else {}
        self._suspects = {job: self._suspects.get(job, now_s) for job in jobs if not alive.get(job, False)}
        return [job for job, since_s in self._suspects.items() if now_s - since_s >= self._ttl_s]
