"""What all drawings with matplotlib share: axes in bytes and time, a calm frame, words for who points at a mark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from vrampool.units import GIB, MIB, format_bytes
from vrampool.visualization.attempts import Attempt
from vrampool.visualization.palette import END_MARKERS, GRID, INK, MUTED, OTHER_MARKER, end_colour

#: Begins the id of a mark that says something when it is pointed at; `reports.svg` makes a tooltip of it.
TIP = "tip|"
#: More marks than this have no words: the page would be of megabytes.
MOST_TIPS = 800

_NICE_STEPS = tuple(factor * 10.0**power for power in range(-3, 7) for factor in (1, 2, 2.5, 5))
_ENDS = {"complete": "complete", "pruned": "pruned", "oom": "out of memory", "infeasible": "fits no device"}


def frame(axes: Axes, title: str = "", note: str = "", *, grid: str = "y") -> None:
    """Take away what is no data, and set the title on the left, a note on the right."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)
        axes.spines[side].set_linewidth(0.8)
    axes.tick_params(colors=INK, labelsize=8.5, length=3, color=MUTED)
    if grid:
        axes.grid(axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]
        axes.set_axisbelow(True)
    if title:
        axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=INK)
    if note:
        axes.set_title(note, loc="right", fontsize=8.5, color=MUTED)


def label(axes: Axes, x: str = "", y: str = "") -> None:
    axes.set_xlabel(x, fontsize=9, color=MUTED)
    axes.set_ylabel(y, fontsize=9, color=MUTED)


def tip(index: int, words: str) -> str:
    """Return the id of a mark with words."""
    return f"{TIP}{index}|{words}"


def bytes_axis(axis: Any, top: float, *, most: int = 6) -> str:
    """Put round amounts on a linear axis that begins at 0; return their unit."""
    unit, word = (GIB, "GiB") if top >= 2 * GIB else (MIB, "MiB")
    step = next(step for step in _NICE_STEPS if top / unit / step <= most)
    ticks = np.arange(0, top / unit + step / 100, step)
    axis.set_major_locator(FixedLocator(list(ticks * unit)))
    axis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axis.set_minor_locator(NullLocator())
    return word


def log_bytes_axis(axis: Any, low: float, high: float) -> None:
    """Put powers of two on a logarithmic axis, in words."""
    first, last = int(np.floor(np.log2(low))), int(np.ceil(np.log2(high)))
    step = max(1, (last - first + 5) // 6)
    ticks = [2.0**power for power in range(first, last + 1, step)]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([_power_words(tick) for tick in ticks]))
    axis.set_minor_locator(NullLocator())


def _power_words(value: float) -> str:
    return format_bytes(int(value)).replace(".0 ", " ")


def time_axis(axes: Axes, seconds: float, since: str = "the first trial") -> None:
    """Put round times on the horizontal axis."""
    unit, word = (3600, "hours") if seconds > 3 * 3600 else (60, "minutes") if seconds > 300 else (1, "seconds")
    step = next(step for step in _NICE_STEPS if seconds / unit / step <= 10)
    ticks = np.arange(0, seconds / unit + step / 100, step)
    axes.set_xticks(ticks * unit, [f"{tick:g}" for tick in ticks])
    axes.set_xlim(0, seconds)
    label(axes, f"{word} since {since}", axes.get_ylabel())


def number_axis(axis: Any, low: float, high: float, *, most: int = 5) -> None:
    """Put plain numbers on a logarithmic axis: 16, 64, 256; 1e-05, 0.001."""
    base = 2.0 if high / low <= 2**12 and low >= 1 else 10.0
    first, last = int(np.ceil(np.log(low) / np.log(base) - 1e-9)), int(np.floor(np.log(high) / np.log(base) + 1e-9))
    step = max(1, int(np.ceil((last - first + 1) / most)))
    ticks = [base**power for power in range(first, last + 1, step)]
    if len(ticks) < 3:
        powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
        factors = (1, 3) if high / low >= 30 else (1, 2, 5)
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high] or [low, high]
        ticks = ticks[:: -(-len(ticks) // most)]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axis.set_minor_locator(NullLocator())


@dataclass(frozen=True)
class Point:
    """One attempt at its place: form and colour say how it ended."""

    x: float
    y: float
    attempt: Attempt
    words: str  #: told when it is pointed at
    size: float = 5.5


def draw_points(axes: Axes, points: Sequence[Point], first: int = 0) -> None:
    """Draw points; each says its words as long as there are not too many. Limits of the axes are left as they are.

    Args:
        axes: Where to.
        points: What.
        first: Number of points that are in the figure already.
    """
    if first + len(points) > MOST_TIPS:
        _draw_crowd(axes, points)
        return
    for index, point in enumerate(points):
        shape, _ = END_MARKERS.get(point.attempt.end, OTHER_MARKER)
        line = Line2D(
            [point.x],
            [point.y],
            linestyle="",
            marker=shape,
            markersize=point.size + (0.8 if shape == "X" else 0),
            color=end_colour(point.attempt.end),
            markeredgecolor="white",
            markeredgewidth=0.5,
            alpha=0.85,
            clip_on=False,
            zorder=3 if point.attempt.end == "complete" else 4,
        )
        line.set_gid(tip(first + index, point.words))
        axes.add_line(line)


def _draw_crowd(axes: Axes, points: Sequence[Point]) -> None:
    """Draw many points as one object for each way to end."""
    for end in sorted({point.attempt.end for point in points}):
        own = [point for point in points if point.attempt.end == end]
        axes.scatter(
            [point.x for point in own],
            [point.y for point in own],
            s=[(point.size * 0.8) ** 2 for point in own],
            marker=END_MARKERS.get(end, OTHER_MARKER)[0],
            color=end_colour(end),
            edgecolors="white",
            linewidths=0.4,
            alpha=0.7,
            zorder=3 if end == "complete" else 4,
        )


def legend_of(axes: Axes, attempts: Iterable[Attempt], extra: Sequence[Line2D] = (), **where: Any) -> None:
    """Explain the forms that are there, with their counts."""
    counts: dict[str, int] = {}
    for attempt in attempts:
        counts[attempt.end] = counts.get(attempt.end, 0) + 1
    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker=END_MARKERS.get(end, OTHER_MARKER)[0],
            markersize=6,
            color=end_colour(end),
            markeredgecolor="white",
            markeredgewidth=0.5,
            label=f"{_ENDS.get(end, end)} ({count})",
        )
        for end, count in sorted(counts.items(), key=lambda item: -item[1])
    ]
    place: dict[str, Any] = {"loc": "upper left", "frameon": False, "fontsize": 8.5, "labelcolor": INK} | where
    axes.legend(handles=[*handles, *extra], **place)


def nothing(axes: Axes, words: str) -> None:
    """Say that there is nothing to draw."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, words, ha="center", va="center", fontsize=10, color=MUTED, transform=axes.transAxes, wrap=True)
