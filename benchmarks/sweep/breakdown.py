"""Why a pool's sweep took so long: what it leased and used, when nothing ran, and what trials waited for. Pure.

Two sources: samples of the device, which the worker keeps, and looks at the queue from outside.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from benchmarks.sweep.summary import Attempt, Span, covered
from vrampool.units import GIB

#: A trial whose lease is so much of the budget has the device to itself.
_WHOLE = 0.95
#: What an attempt costs beside its training, in seconds; averages are told.
_TAX = ("wait_s", "spawn_s", "handover_s", "context_s", "exit_s")
_REASONS_KEPT = 8


@dataclass(frozen=True)
class Look:
    """The queue at one moment."""

    at_s: float  #: since the epoch
    waiting: int
    running: int  #: as the worker last told
    why: str = ""  #: why the first of those that wait does
    state: str = ""  #: of the worker, with its reason
    free_gib: float = 0.0  #: as the worker last told


def break_down(
    attempts: Sequence[Attempt],
    samples: Sequence[Mapping[str, Any]],
    looks: Sequence[Look],
    releases: Sequence[Mapping[str, Any]],
    *,
    budget_bytes: int,
    span: Span,
) -> dict[str, Any]:
    """Return the figures.

    Args:
        attempts: All attempts.
        samples: Of the device, as the history keeps them.
        looks: At the queue.
        releases: What came back when trials ended, as the history keeps them.
        budget_bytes: Of the device.
        span: From the submission to the end, in seconds since the epoch.
    """
    begin_s, end_s = span
    spans = [(item.start_s, item.end_s) for item in attempts]
    first_s = min((start for start, _ in spans), default=0.0)
    last_s = max((end for _, end in spans), default=0.0)
    facts = [item.facts for item in attempts]
    found: dict[str, Any] = {
        "until_first_start_s": round(first_s, 2),
        "after_last_end_s": round(end_s - begin_s - last_s, 2),
        "nothing_started_s": round(last_s - first_s - covered(spans), 2),
        "no_objective_s": round(end_s - begin_s - covered(_objective(item) for item in attempts), 2),
        "spare_ready": sum(bool(item.get("spare")) for item in facts),
        "under_mps": sum(item.get("mps") is True for item in facts),
        "asked_for_all": sum(item.get("request_bytes", 0) is None for item in facts),
        "asked_for_all_s": _asked_for_all_s(attempts),
        "back_max_s": max((float(item["back_s"]) for item in releases), default=None),
        "back_sum_s": round(sum(float(item["back_s"]) for item in releases), 2),
    }
    found |= {f"mean_{name}": _mean(item.get(name) for item in facts) for name in _TAX}
    done = [item.facts for item in attempts if item.end == "complete"]
    found["lease_over_peak"] = _mean(
        item["lease_bytes"] / item["peak_bytes"] for item in done if item.get("lease_bytes") and item.get("peak_bytes")
    )
    return found | of_samples(samples, budget_bytes, span) | of_looks(looks, span)


def _asked_for_all_s(attempts: Iterable[Attempt]) -> float:
    """Return how long attempts ran that had asked for a device of their own, of which nothing was known."""
    return round(covered((a.start_s, a.end_s) for a in attempts if a.facts.get("request_bytes", 0) is None), 1)


def _objective(attempt: Attempt) -> Span:
    """Return when an attempt's objective ran, without its process's start and end."""
    facts = attempt.facts
    start_s = attempt.start_s + (facts.get("spawn_s") or 0.0) + (facts.get("handover_s") or 0.0)
    return start_s, max(start_s, attempt.end_s - (facts.get("exit_s") or 0.0))


def of_samples(samples: Sequence[Mapping[str, Any]], budget_bytes: int, span: Span) -> dict[str, Any]:
    """Return means over time of what was leased and used, and the seconds in which one trial had all of it."""
    leased = measured = used = exclusive_s = total_s = 0.0
    at_once = 0.0
    for sample, seconds in _lasting(samples, [float(item["at_s"]) for item in samples], span):
        trials = sample["trials"]
        leases = [int(trial["lease_bytes"]) for trial in trials]
        total_s += seconds
        leased += seconds * sum(leases)
        measured += seconds * sum(int(trial["measured_bytes"] or 0) for trial in trials)
        used += seconds * int(sample["used_bytes"] or 0)
        at_once += seconds * len(trials)
        if budget_bytes and max(leases, default=0) >= _WHOLE * budget_bytes:
            exclusive_s += seconds
    if not total_s:
        return {"budget_gib": round(budget_bytes / GIB, 2), "leased_mean_gib": None, "exclusive_s": None}
    return {
        "budget_gib": round(budget_bytes / GIB, 2),
        "leased_mean_gib": round(leased / total_s / GIB, 2),
        "measured_mean_gib": round(measured / total_s / GIB, 2),
        "used_mean_gib": round(used / total_s / GIB, 2),
        "leases_mean": round(at_once / total_s, 2),
        "exclusive_s": round(exclusive_s, 1),
    }


def of_looks(looks: Sequence[Look], span: Span) -> dict[str, Any]:
    """Return for how long something waited and nothing did, and what the first in line waited for."""
    reasons: dict[str, float] = defaultdict(float)
    for look, seconds in _lasting(looks, [item.at_s for item in looks], span):
        reasons[general(look.why) if look.waiting else "nothing waits"] += seconds
    most = sorted(reasons.items(), key=lambda item: -item[1])[:_REASONS_KEPT]
    top = {reason: round(seconds, 1) for reason, seconds in most}
    return {"queue_empty_s": round(reasons["nothing waits"], 1), "first_in_line_s": top}


def general(sentence: str) -> str:
    """Return a sentence without its figures, so that equal reasons count together."""
    return re.sub(r"\d+(\.\d+)?", "#", sentence)


def _lasting(items: Sequence[Any], times: Sequence[float], span: Span) -> Iterable[tuple[Any, float]]:
    """Yield each item with the seconds until the next one, as far as they lie within the span."""
    begin_s, end_s = span
    for index, item in enumerate(items):
        until_s = times[index + 1] if index + 1 < len(times) else end_s
        seconds = min(until_s, end_s) - max(times[index], begin_s)
        if seconds > 0:
            yield item, seconds


def _mean(values: Iterable[Any]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return round(mean(known), 3) if known else None
