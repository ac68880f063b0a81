"""When a running trial's worker is taken for dead: never in haste, and no later than it must be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from vrampool.coordinator.reaper import Reaper

TTL_S, BEAT_S = 6.0, 2.0


@dataclass
class Leases:
    """Redis, as far as it is asked."""

    held: set[str] = field(default_factory=set)
    run_id: str = "first"
    uptime_s: float = 1000.0

    def server(self) -> tuple[str, float]:
        return self.run_id, self.uptime_s

    def alive(self, job_ids: Iterable[str]) -> dict[str, bool]:
        return {job: job in self.held for job in job_ids}


def reaper_of(leases: Leases) -> Reaper:
    return Reaper(leases, ttl_s=TTL_S, beat_s=BEAT_S)


def test_a_lease_that_is_gone_in_two_reads_a_life_apart_is_a_loss():
    reaper = reaper_of(Leases())
    assert reaper.lost(["a"], 100.0) == []
    assert reaper.due_s == 106.0
    assert reaper.lost(["a"], 105.9) == []
    assert reaper.lost(["a"], 106.0) == ["a"]


def test_a_lease_that_comes_back_in_between_is_none():
    leases = Leases()
    reaper = reaper_of(leases)
    reaper.lost(["a"], 100.0)
    leases.held.add("a")
    reaper.lost(["a"], 103.0)
    assert reaper.due_s == math.inf
    leases.held.clear()
    assert reaper.lost(["a"], 106.0) == []
    assert reaper.lost(["a"], 112.0) == ["a"]


def test_a_trial_that_has_ended_is_not_suspected_any_more():
    reaper = reaper_of(Leases())
    reaper.lost(["a"], 100.0)
    assert reaper.lost([], 106.0) == []
    assert reaper.lost(["a"], 107.0) == []


def test_after_a_restart_of_redis_nobody_is_judged_for_a_life_and_a_beat():
    """Its workers have that long to write their leases again, and then the two reads count anew."""
    leases = Leases()
    reaper = reaper_of(leases)
    reaper.lost(["a"], 100.0)
    leases.run_id = "second"
    assert reaper.lost(["a"], 106.0) == []
    assert reaper.lost(["a"], 113.9) == []
    assert reaper.lost(["a"], 114.0) == []
    assert reaper.lost(["a"], 120.0) == ["a"]


def test_a_coordinator_that_starts_with_a_young_redis_does_not_judge_either():
    reaper = reaper_of(Leases(uptime_s=1.0))
    assert reaper.lost(["a"], 100.0) == []
    assert reaper.lost(["a"], 107.0) == []
    assert reaper.due_s == math.inf


def test_an_outage_forgives_everybody():
    reaper = reaper_of(Leases())
    reaper.lost(["a"], 100.0)
    reaper.forgive(105.0)
    assert reaper.lost(["a"], 106.0) == []
    assert reaper.lost(["a"], 113.0) == []
    assert reaper.lost(["a"], 119.0) == ["a"]
