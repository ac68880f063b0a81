"""What became of a way's trials, counted from its attempts; and times during which none, or only some, ran. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Span = tuple[float, float]


@dataclass(frozen=True)
class Attempt:
    """One run of one trial. Times are seconds since the way's clock began."""

    id: int  #: of the trial
    start_s: float
    end_s: float
    end: str  #: "complete", "oom", "infeasible", "failed", "crashed", "cancelled"
    attempt: int = 1
    verdict: str | None = None  #: of an out-of-memory error: "culprit", "victim" or another of the pool's
    text: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)  #: whatever else is known

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarise(
    attempts: Sequence[Attempt], asked: Collection[int], beyond: Collection[int], makespan_s: float, *, cut: bool
) -> dict[str, Any]:
    """Count.

    Args:
        attempts: All attempts of the way.
        asked: Ids of the trials it was given.
        beyond: Ids of those that are larger than the card.
        makespan_s: From the clock's begin to the end of the last trial.
        cut: Its time was up before all had ended.
    """
    done = {item.id for item in attempts if item.end == "complete"}
    # When time was up, a trial that might have been tried again is unfinished, not lost.
    given_up = {item.id for item in attempts if item.end == "infeasible"} if cut else set(asked)
    lost = (set(asked) - done) & given_up
    unfinished = set(asked) - done - lost
    ooms = [item for item in attempts if item.end == "oom" or item.verdict]
    own = [(item.start_s, item.end_s) for item in attempts]
    return {
        "makespan_s": round(makespan_s, 1),
        "trials": len(asked),
        "finished": len(done),
        "lost_fit": len(lost - set(beyond)),
        "lost_beyond": len(lost & set(beyond)),
        "unfinished": len(unfinished),
        "cut": cut,
        "attempts": len(attempts),
        "retries": sum(item.attempt > 1 for item in attempts),
        "ooms": len(ooms),
        "victims": sum(item.verdict == "victim" for item in attempts),
        "crashes": sum(item.end in ("crashed", "failed", "lost") for item in attempts),
        "wasted_s": round(sum(item.end_s - item.start_s for item in attempts if item.end != "complete"), 1),
        "mean_concurrent": round(sum(end - start for start, end in own) / makespan_s, 2) if makespan_s else None,
        "slowdown": _slowdown(attempts),
        "idle_s": round(max(0.0, makespan_s - covered(own)), 1),
        "beyond_alone_s": round(alone(attempts, beyond), 1),
    }


def _slowdown(attempts: Iterable[Attempt]) -> float | None:
    """Return how many times longer completed trials ran than their steps take alone on the card, on average."""
    done = [item.facts for item in attempts if item.end == "complete"]
    ratios = [item["run_s"] / item["alone_s"] for item in done if item.get("run_s") and item.get("alone_s")]
    return round(sum(ratios) / len(ratios), 2) if ratios else None


def covered(spans: Iterable[Span]) -> float:
    """Return the seconds that at least one of the spans covers."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def alone(attempts: Iterable[Attempt], ids: Collection[int]) -> float:
    """Return the seconds during which only trials with these ids ran."""
    spans = [(item.id in ids, (item.start_s, item.end_s)) for item in attempts]
    return covered(span for _, span in spans) - covered(span for mine, span in spans if not mine)
