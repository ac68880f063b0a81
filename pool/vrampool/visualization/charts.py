"""Draws a study's memory with matplotlib: predicted against measured, each parameter, the OOM map, rates, start-up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from vrampool.units import format_bytes
from vrampool.visualization.attempts import Attempt, StudyAttempts, choices_of, is_choice, is_log
from vrampool.visualization.drawing import (
    Point,
    bytes_axis,
    draw_points,
    frame,
    label,
    legend_of,
    log_bytes_axis,
    nothing,
    number_axis,
    time_axis,
)
from vrampool.visualization.measures import PARTS, params_by_influence, startup_tax, throughput
from vrampool.visualization.palette import ACCENT, COMPLETE, DRIVER, FAILED, FAINT, INK, MUTED, PRUNED

#: Panels in the picture of parameters; weaker ones are left out and said.
MOST_PARAMS = 9
#: Points of one choice are spread by so much of the distance to the next.
_SPREAD = 0.22
#: So few values of a number are each named on their axis.
_FEW = 6


def draw_prediction(figure: Figure, study: StudyAttempts) -> list[Axes]:
    """Draw what was asked for (or predicted) against what was measured, for trials that had a request in bytes."""
    axes = figure.subplots()
    rows = [a for a in study.measured if a.memory.predicted_bytes or a.memory.request_bytes]
    if not rows:
        nothing(axes, "Every trial had a device to itself, so nothing was asked for in bytes yet.")
        return [axes]
    asked = np.array([float(a.memory.request_bytes or a.memory.predicted_bytes or 0) for a in rows])
    peaks = np.array([float(a.memory.peak_bytes or 0) for a in rows])
    low, high = min(asked.min(), peaks.min()) / 1.25, max(asked.max(), peaks.max()) * 1.25
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.fill_between([low, high], [low, high], [high, high], color=FAILED, alpha=0.06, linewidth=0)
    axes.plot([low, high], [low, high], color=MUTED, linewidth=1)
    for index, attempt in enumerate(rows):
        predicted = attempt.memory.predicted_bytes
        if predicted and attempt.memory.request_bytes:
            axes.plot(
                [predicted, asked[index]],
                [peaks[index]] * 2,
                color=FAINT,
                linewidth=1.1,
                solid_capstyle="butt",
                zorder=1,
            )
    points = [
        Point(x, y, attempt, _prediction_words(attempt)) for x, y, attempt in zip(asked, peaks, rows, strict=True)
    ]
    draw_points(axes, points)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    log_bytes_axis(axes.xaxis, low, high)
    log_bytes_axis(axes.yaxis, low, high)
    over = int((peaks > asked).sum())
    times = float(np.median(asked / peaks))
    note = f"{over} of {len(rows)} held more than was asked for   ·   the median request was {times:.2g} times the peak"
    frame(axes, "", note, grid="both")
    label(axes, "asked for", "measured peak")
    axes.annotate(
        "held more than asked", (0.02, 0.72), xycoords="axes fraction", fontsize=8.5, color=FAILED, ha="left", va="top"
    )
    extra = [Line2D([], [], color=MUTED, linewidth=1, label="peak = asked for")]
    if any(a.memory.predicted_bytes for a in rows):
        extra.append(Line2D([], [], color=FAINT, linewidth=1.5, label="predicted to asked for: the margin"))
    legend_of(axes, rows, extra)
    return [axes]


def _prediction_words(attempt: Attempt) -> str:
    memory = attempt.memory
    words = f"trial {attempt.number}: {attempt.how}"
    if memory.predicted_bytes:
        words += f", predicted {format_bytes(memory.predicted_bytes)}"
    if memory.request_bytes:
        words += f", asked for {format_bytes(memory.request_bytes)}"
    return f"{words}, peak {'at least ' if memory.at_least else ''}{format_bytes(memory.peak_bytes)}"


def draw_slices(figure: Figure, study: StudyAttempts, params: Sequence[str] | None = None) -> list[Axes]:
    """Draw the peak against each parameter, the most telling one first."""
    names = list(params) if params is not None else params_by_influence(study)
    names = [name for name in names if any(name in a.memory.params for a in study.measured)][:MOST_PARAMS]
    if not names:
        axes = figure.subplots()
        nothing(axes, "No trial with parameters has been measured yet.")
        return [axes]
    columns = 2 if len(names) == 4 else min(3, len(names))
    grid = figure.subplots(math.ceil(len(names) / columns), columns, squeeze=False, sharey=True)
    peaks = [float(a.memory.peak_bytes or 0) for a in study.measured]
    use_log = max(peaks) / min(peaks) >= 6
    for position, axes in enumerate(grid.flat):
        if position >= len(names):
            axes.set_axis_off()
            continue
        _draw_slice(axes, study, names[position], offset=position * len(peaks), most_ticks=6 - columns)
        if use_log:
            axes.set_yscale("log")
        first = position % columns == 0
        frame(axes, names[position], "", grid="both")
        if use_log:
            low, high = min(peaks) / 1.2, max(peaks) * 1.2
            axes.set_ylim(low, high)
            log_bytes_axis(axes.yaxis, low, high)
            label(axes, "", "peak" if first else "")
        else:
            top = max(peaks) * 1.1
            axes.set_ylim(0, top)
            unit = bytes_axis(axes.yaxis, top)
            label(axes, "", f"peak ({unit})" if first else "")
    legend_of(grid.flat[0], study.measured, loc="best")
    return list(grid.flat)[: len(names)]


def _draw_slice(axes: Axes, study: StudyAttempts, name: str, *, offset: int, most_ticks: int) -> None:
    rows = [a for a in study.measured if name in a.memory.params]
    places = _places(axes, "x", study, name, rows, most_ticks)
    points = []
    for attempt, x in zip(rows, places, strict=True):
        peak, value = attempt.memory.peak_bytes or 0, _value(attempt.memory.params[name])
        words = f"trial {attempt.number}: {attempt.how}, {name} = {value}, peak {format_bytes(peak)}"
        points.append(Point(x, peak, attempt, words, 4.5))
    draw_points(axes, points, offset)


def _places(
    axes: Axes, side: str, study: StudyAttempts, name: str, rows: Sequence[Attempt], most_ticks: int = 5
) -> list[float]:
    """Set the scale of an axis for a parameter; return where each attempt stands on it."""
    values = [a.memory.params[name] for a in rows]
    axis = axes.xaxis if side == "x" else axes.yaxis
    scale = axes.set_xscale if side == "x" else axes.set_yscale
    limits: Any = axes.set_xlim if side == "x" else axes.set_ylim
    distribution = study.distributions.get(name)
    if is_choice(distribution, values):
        choices = choices_of(distribution, values)
        axis.set_ticks(range(len(choices)), [choice[:14] for choice in choices])
        limits(-0.6, len(choices) - 0.4)
        # Spread by the golden ratio, so that equal points do not hide each other and every drawing is the same.
        return [
            choices.index(str(value)) + _SPREAD * (2 * ((a.number * 0.618) % 1) - 1)
            for value, a in zip(values, rows, strict=True)
        ]
    if is_log(distribution, values):
        scale("log")
        limits(min(values) / 1.15, max(values) * 1.15)
        if len(set(values)) > _FEW:
            number_axis(axis, min(values) / 1.01, max(values) * 1.01, most=most_ticks)
    if len(set(values)) <= _FEW:
        axis.set_ticks(sorted(set(values)), [_value(value) for value in sorted(set(values))])
        axis.set_minor_locator(NullLocator())
    if not is_log(distribution, values):
        margin = 0.06 * (max(values) - min(values)) or 0.5
        limits(min(values) - margin, max(values) + margin)
    return [float(value) for value in values]


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def draw_oom_map(figure: Figure, study: StudyAttempts, params: Sequence[str] | None = None) -> list[Axes]:
    """Draw where in the space of two parameters trials ran out of memory."""
    axes = figure.subplots()
    names = list(params) if params is not None else params_by_influence(study)[:2]
    if len(names) < 2:
        nothing(axes, "An OOM map needs two parameters.")
        return [axes]
    rows = [a for a in study.ended if all(name in a.memory.params for name in names)]
    if not rows:
        nothing(axes, f"No trial has both {names[0]} and {names[1]}.")
        return [axes]
    across = _places(axes, "x", study, names[0], rows)
    upward = _places(axes, "y", study, names[1], rows)
    largest = max((a.memory.peak_bytes or 0 for a in rows), default=1) or 1
    points = []
    for attempt, x, y in zip(rows, across, upward, strict=True):
        size = 4 + 9 * math.sqrt((attempt.memory.peak_bytes or 0) / largest)
        pairs = ", ".join(f"{name} = {_value(attempt.memory.params[name])}" for name in names)
        words = f"trial {attempt.number}: {attempt.how}, {pairs}, peak {format_bytes(attempt.memory.peak_bytes)}"
        points.append(Point(x, y, attempt, words, size))
    draw_points(axes, points)
    ooms = sum(attempt.out_of_memory for attempt in rows)
    frame(axes, "", f"{ooms} of {len(rows)} ran out of memory   ·   larger marks: larger peaks", grid="both")
    label(axes, names[0], names[1])
    legend_of(axes, rows, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4)
    return [axes]


def draw_rate(figure: Figure, study: StudyAttempts) -> list[Axes]:
    """Draw trials per hour over time, and below how many ran at once."""
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
    found = throughput(study)
    edges, per_hour = np.array(found.edges_s), 3600 / found.window_s
    counted, others = np.array(found.counted) * per_hour, np.array(found.others) * per_hour
    upper.stairs(counted, edges, fill=True, color=COMPLETE, alpha=0.75, label="complete and pruned")
    if others.any():
        upper.stairs(
            counted + others, edges, baseline=counted, fill=True, color=FAILED, alpha=0.75, label="failed attempts"
        )
    upper.axhline(found.per_hour, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    upper.annotate(
        f"mean {found.per_hour:,.0f}", (1, found.per_hour), xycoords=("axes fraction", "data"), xytext=(-2, 3),
        textcoords="offset points", ha="right", fontsize=8.5, color=INK,
    )  # fmt: skip
    upper.set_ylim(0, max((counted + others).max() * 1.15, 1))
    upper.legend(loc="upper left", frameon=False, fontsize=8.5, ncols=2, labelcolor=INK)
    done = sum(found.counted)
    frame(upper, "", f"{done} trials, counted in windows of {found.window_s:g} s")
    label(upper, "", "trials per hour")
    lower.stairs(found.running, edges, fill=True, color=ACCENT, alpha=0.45)
    lower.set_ylim(0, max(max(found.running) * 1.2, 1))
    frame(lower)
    label(lower, "", "at once")
    time_axis(lower, float(edges[-1]))
    return [upper, lower]


_PART_COLOURS = {"spawn_s": PRUNED, "handover_s": ACCENT, "run_s": DRIVER, "back_s": FAILED}
_PART_WORDS = {
    "spawn_s": "start of the process",
    "handover_s": "hand-over",
    "run_s": "objective",
    "back_s": "memory back",
}


def draw_startup(figure: Figure, study: StudyAttempts) -> list[Axes]:
    """Draw where the time of all attempts went, and how long each part of the start-up took."""
    upper, lower = figure.subplots(2, 1, height_ratios=(1, 2.6))
    tax = startup_tax(study)
    total = sum(sum(values) for values in tax.parts.values())
    if total <= 0:
        for axes in (upper, lower):
            nothing(axes, "")
        nothing(lower, "No attempt has reached its objective yet.")
        return [upper, lower]
    left = 0.0
    for part in ("spawn_s", "handover_s", "back_s", "run_s"):
        share = sum(tax.parts[part]) / total
        upper.barh(0, share, left=left, height=0.7, color=_PART_COLOURS[part], label=f"{_PART_WORDS[part]} {share:.1%}")
        left += share
    upper.set_xlim(0, 1)
    upper.set_ylim(-0.5, 0.5)
    frame(upper, "", f"{tax.share:.1%} of {total:,.0f} s of all attempts is start-up and end", grid="")
    upper.set_yticks([])
    upper.spines["left"].set_visible(False)
    upper.xaxis.set_major_formatter(lambda value, _position: f"{value:.0%}")
    upper.legend(loc="upper left", bbox_to_anchor=(0, -0.45), frameon=False, fontsize=8.5, ncols=4, labelcolor=INK)
    parts = [part for part in PARTS if part != "run_s"]
    for row, part in enumerate(parts):
        values = np.array(tax.parts[part])
        spread = row + 0.26 * (2 * ((np.array(tax.numbers) * 0.618) % 1) - 1)
        lower.plot(
            values, spread, "o", markersize=4, color=_PART_COLOURS[part], alpha=0.55, markeredgewidth=0, clip_on=False
        )
        median = float(np.median(values))
        lower.plot([median, median], [row - 0.36, row + 0.36], color=INK, linewidth=1.6)
        lower.annotate(
            f"{median:.2f} s",
            (median, row - 0.3),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
            va="center",
        )
    lower.set_yticks(range(len(parts)), [_PART_WORDS[part] for part in parts])
    lower.set_ylim(len(parts) - 0.4, -0.6)
    lower.set_xlim(0, max(max(max(tax.parts[part]) for part in parts) * 1.05, 0.05))
    spares = f"{tax.spares} of {len(tax.numbers)} began in a process that was waiting"
    frame(lower, "", spares, grid="x")
    lower.tick_params(axis="y", length=0)
    label(lower, "seconds, each dot an attempt; the line is the median", "")
    return [upper, lower]
