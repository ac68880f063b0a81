"""What trials did and when, from the times and counts that each wrote down: pure but for reading the files.

All times are seconds of the host's monotonic clock, which its processes share.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Width of the slices of time that are looked at for how many trials took steps.
SLICE_S = 0.1


@dataclass(frozen=True)
class Trace:
    """The steps of one trial: times, rising, and how many steps were done by each."""

    at_s: tuple[float, ...]
    done: tuple[int, ...]

    def done_by(self, now_s: float) -> float:
        """Return the steps done by then, evenly spread between two lines; before the first line there is none."""
        index = bisect_right(self.at_s, now_s)
        if index == 0:
            return 0.0
        if index == len(self.at_s):
            return float(self.done[-1])
        began_s, ended_s = self.at_s[index - 1], self.at_s[index]
        part = (now_s - began_s) / (ended_s - began_s)
        return self.done[index - 1] + part * (self.done[index] - self.done[index - 1])

    def runs_at(self, now_s: float) -> bool:
        return self.at_s[0] <= now_s < self.at_s[-1]


def read_traces(folder: Path) -> list[Trace]:
    """Read the files of a folder; a last line that a process could not finish, and an empty file, are left out."""
    traces = []
    for path in sorted(folder.glob("*.steps")):
        lines = path.read_text().split("\n")[:-1]
        pairs = [line.split() for line in lines]
        if pairs:
            traces.append(Trace(tuple(float(at_s) for at_s, _ in pairs), tuple(int(done) for _, done in pairs)))
    return traces


def first_step_s(traces: Sequence[Trace]) -> float:
    """Return when the first trial had done its first step."""
    return min(trace.at_s[0] for trace in traces)


def since(traces: Sequence[Trace], from_s: float) -> list[Trace]:
    """Return the traces as if counting had begun at that time; trials that had ended by then are left out."""
    found = []
    for trace in traces:
        before = round(trace.done_by(from_s))
        pairs = [(at_s, done - before) for at_s, done in zip(trace.at_s, trace.done, strict=True) if at_s > from_s]
        if trace.at_s[0] <= from_s and pairs:
            pairs = [(from_s, 0), *pairs]
        if pairs:
            found.append(Trace(tuple(at_s for at_s, _ in pairs), tuple(done for _, done in pairs)))
    return found


def done_by(traces: Sequence[Trace], now_s: float) -> float:
    """Return the steps that all trials together had done by then."""
    return sum(trace.done_by(now_s) for trace in traces)


def rate(traces: Sequence[Trace], from_s: float, until_s: float) -> float:
    """Return steps per second of all trials together."""
    return (done_by(traces, until_s) - done_by(traces, from_s)) / (until_s - from_s)


def time_until(traces: Sequence[Trace], work: float) -> float | None:
    """Return when all trials together had done so many steps; None: they never had."""
    low_s, high_s = first_step_s(traces), max(trace.at_s[-1] for trace in traces)
    if done_by(traces, high_s) < work:
        return None
    while high_s - low_s > 1e-3:
        middle_s = (low_s + high_s) / 2
        if done_by(traces, middle_s) < work:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


def by_level(traces: Sequence[Trace], from_s: float, until_s: float) -> dict[int, tuple[float, float]]:
    """Return, for each number of trials that took steps at once, for how many seconds and at how many steps per second.

    A trial that starts or ends is not among them meanwhile: what lies between trials shows as a lower number.
    """
    seconds: dict[int, float] = defaultdict(float)
    steps: dict[int, float] = defaultdict(float)
    count = max(1, round((until_s - from_s) / SLICE_S))
    width_s = (until_s - from_s) / count
    for index in range(count):
        began_s = from_s + index * width_s
        level = sum(trace.runs_at(began_s + width_s / 2) for trace in traces)
        seconds[level] += width_s
        steps[level] += done_by(traces, began_s + width_s) - done_by(traces, began_s)
    return {level: (seconds[level], steps[level] / seconds[level]) for level in sorted(seconds)}


def changes_of_level(traces: Sequence[Trace], from_s: float, until_s: float) -> list[tuple[float, int]]:
    """Return how many trials took steps at once, each time that it changed for longer than a moment, from the start."""
    found: list[tuple[float, int]] = []
    pending: tuple[float, int] | None = None
    for index in range(int((until_s - from_s) / SLICE_S)):
        now_s = index * SLICE_S
        level = sum(trace.runs_at(from_s + now_s) for trace in traces)
        if found and level == found[-1][1]:
            pending = None
        elif pending is None or pending[1] != level:
            pending = (now_s, level)
        if pending is not None and (not found or now_s - pending[0] >= 4 * SLICE_S):
            found.append((round(pending[0], 1), level))
            pending = None
    return found
