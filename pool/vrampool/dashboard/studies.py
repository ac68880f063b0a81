"""What the page shows of a study: where it is, what came out, what its trials took. Pure; all in plain JSON types."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from vrampool import retries
from vrampool.dashboard.memories import Memories, thin
from vrampool.dashboard.source import StudyReading, Submission
from vrampool.dashboard.tallies import Tally
from vrampool.storage import SubmissionState, attempt_of

#: Kinds of failure that are told.
_MOST_FAILURES = 5


def study_view(reading: StudyReading, tally: Tally, memories: Memories) -> dict[str, Any]:
    """Return a study for the page.

    Args:
        reading: The study.
        tally: Of all its trials.
        memories: Of this study, from earlier readings.
    """
    roots = [root for item in reading.submissions for root in retries.roots(reading.trials, item.spec)]
    counted = [root.last for root in roots if root.counted]
    newest = _speaker(reading.submissions)
    states = Counter(trial.state for trial in reading.trials)
    return {
        "name": reading.name,
        "submission": newest.row.id,
        "state": str(newest.row.state),
        "reason": newest.row.reason,
        "live": reading.live,
        "created_at": reading.submissions[0].row.created_at,
        "directions": list(reading.directions),
        "objective": _short(newest.spec.objective.target),
        "vram": newest.spec.vram if isinstance(newest.spec.vram, int) else None,
        "wanted": _wanted(reading),
        "finished": len(counted),
        "running": states[TrialState.RUNNING],
        "waiting": states[TrialState.WAITING],
        "counts": dict(Counter(trial.state.name for trial in counted)),
        "attempts": len(reading.trials),
        "ends": dict(tally.ends),
        "verdicts": dict(tally.verdicts),
        "retries": tally.retries,
        "start_s": round(tally.start_s / tally.started, 3) if tally.started else None,
        "failures": _failures(counted),
        **(_front(reading) if len(reading.directions) > 1 else _best(reading)),
        **memories.add(reading.trials),
    }


def _speaker(submissions: Sequence[Submission]) -> Submission:
    """Return the submission whose state is the study's: the newest live one, else the newest."""
    live = [item for item in submissions if not item.row.state.final]
    return (live or list(submissions))[-1]


def _wanted(reading: StudyReading) -> int | None:
    """Return how many root trials all submissions ask for; None when one has no end."""
    whole = 0
    for item in reading.submissions:
        if item.spec.total is not None:
            whole += max(item.spec.total - retries.count_of_others(reading.trials, item.row.id), 0)
        elif item.spec.n_trials is not None:
            whole += item.spec.n_trials
        elif item.row.state in (SubmissionState.OPEN, SubmissionState.STOPPING):
            return None
    return whole


def _short(target: str) -> str:
    return target.rpartition("/")[2]


def _failures(counted: Iterable[FrozenTrial]) -> list[list[Any]]:
    lines: Counter[str] = Counter()
    for trial in counted:
        if trial.state == TrialState.FAIL:
            facts = attempt_of(trial)
            text = facts.text.strip() if facts is not None else str(trial.user_attrs.get("vrampool:lost") or "")
            lines[(text.splitlines() or ["failed from outside"])[0][:200]] += 1
    return [[line, count] for line, count in lines.most_common(_MOST_FAILURES)]


def _best(reading: StudyReading) -> dict[str, Any]:
    """Return finished values over time with the best so far: [t, value, number, is a new best]."""
    sign = -1.0 if reading.directions[0] == "maximize" else 1.0
    points: list[list[Any]] = []
    best: FrozenTrial | None = None
    best_at_s = 0.0
    for at_s, trial in _by_end(reading.trials):
        value = trial.value
        if value is None or not math.isfinite(value):
            continue
        better = best is None or best.value is None or sign * value < sign * best.value
        if better:
            best, best_at_s = trial, at_s
        points.append([at_s, value, trial.number, better])
    found = None
    if best is not None:
        params = {name: _plain(value) for name, value in best.params.items()}
        found = {"value": best.value, "number": best.number, "params": params, "at": best_at_s}
    return {"best": found, "values": thin(points, 3), "front": None}


def _front(reading: StudyReading) -> dict[str, Any]:
    """Return the values of a study with several objectives: [first, second, number, on the front]."""
    done = [trial for _, trial in _by_end(reading.trials) if trial.values and all(map(math.isfinite, trial.values))]
    signs = [-1.0 if word == "maximize" else 1.0 for word in reading.directions]
    costs = [[sign * value for sign, value in zip(signs, trial.values, strict=True)] for trial in done]
    best = _not_dominated(costs)
    points = [[t.values[0], t.values[1], t.number, place in best] for place, t in enumerate(done)]
    return {"best": None, "values": thin(points, 3), "front": len(best)}


def _not_dominated(costs: Sequence[list[float]]) -> set[int]:
    """Return the places of those that no other is better than in all objectives."""
    front: list[int] = []
    for place in sorted(range(len(costs)), key=lambda place: costs[place]):
        mine = costs[place]
        # Sorted so, whoever dominates a point comes before it.
        if not any(all(a <= b for a, b in zip(costs[o], mine, strict=True)) and costs[o] != mine for o in front):
            front.append(place)
    return set(front)


def _by_end(trials: Iterable[FrozenTrial]) -> Iterator[tuple[float, FrozenTrial]]:
    ended = [
        (trial.datetime_complete.timestamp(), trial.number, trial)
        for trial in trials
        if trial.state == TrialState.COMPLETE and trial.datetime_complete is not None
    ]
    for at_s, _, trial in sorted(ended, key=lambda item: item[:2]):
        yield round(at_s, 2), trial


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
