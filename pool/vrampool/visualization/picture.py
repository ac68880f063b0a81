"""Draws timelines with matplotlib's own objects: no pyplot, so nothing global changes in a user's notebook."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from vrampool.units import GIB, MIB, format_bytes
from vrampool.visualization.palette import trial_colour
from vrampool.visualization.timeline import Band, DeviceTimeline, Floats, TrialEnd, TrialKey

_WIDTH_IN = 13.0
_ROW_IN = 3.3
_LANE_IN = 0.2
_DPI = 130
_LABEL_SIZES = (9.0, 7.0, 5.5)
_INK = "#2b2f36"
_MUTED = "#7a828e"
_DRIVER = "#c3c8cf"
_STRANGERS = "#8d95a1"
_BUDGET = "#b4233a"
#: Marker and words for each state in which a trial can end.
_STATES = {"COMPLETE": ("o", "complete"), "PRUNED": ("v", "pruned"), "FAIL": ("X", "failed")}
_OTHER_STATE = ("D", "ended otherwise")
#: Less than this stays unmarked: drivers and allocators round by such amounts.
_NOTABLE_RESIDUE_BYTES = 64 * MIB
#: A device on which trials use less than this part of the budget is drawn up to what they use.
_WORTH_SHOWING = 0.45


def draw(timelines: Sequence[DeviceTimeline], path: Path, title: str) -> None:
    """Draw one row per device, its stack of memory above and the ends of its trials below, and write the file."""
    names = _label_names(timelines)
    seconds = max(line.edges_s[-1] for line in timelines)
    lanes = [_lanes(line.ends, seconds) for line in timelines]
    heights: list[float] = []
    for row in lanes:
        heights += [_ROW_IN, _LANE_IN * (max(row, default=0) + 1.2)]
    layout = ConstrainedLayoutEngine(hspace=0.0, h_pad=0.04)
    figure = Figure(figsize=(_WIDTH_IN, sum(heights) + 0.55 * len(timelines) + 1.25), dpi=_DPI, layout=layout)
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    axes[0].set_xlim(0, seconds)
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=_INK)
    _legend(figure, timelines)
    figure.draw_without_rendering()  # labels are placed by the room they have, which the layout decides
    for line, row, stack, strip in zip(timelines, lanes, axes[::2], axes[1::2], strict=True):
        _draw_stack(stack, line, names)
        _draw_ends(strip, line.ends, row, names)
    _time_axis(axes[-1], seconds)
    figure.savefig(path)


def _label_names(timelines: Sequence[DeviceTimeline]) -> dict[TrialKey, str]:
    """Return each trial's label: its number, behind a letter for its study where there are several."""
    keys = {band.key for line in timelines for band in line.bands} | {
        end.key for line in timelines for end in line.ends
    }
    studies = sorted({study for study, _ in keys})
    if len(studies) == 1:
        return {key: str(key[1]) for key in keys}
    return {key: f"{chr(ord('a') + studies.index(key[0]) % 26)}{key[1]}" for key in keys}


def _draw_stack(axes: Axes, line: DeviceTimeline, names: dict[TrialKey, str]) -> None:
    floor = np.zeros_like(line.driver_bytes)
    _fill(axes, line.edges_s, floor, line.driver_bytes, facecolor=_DRIVER)
    _fill(
        axes,
        line.edges_s,
        line.driver_bytes,
        line.driver_bytes + line.strangers_bytes,
        facecolor=_STRANGERS,
        hatch="////",
        edgecolor="white",
        linewidth=0,
    )
    for band in line.bands:
        _draw_band(axes, line.edges_s, band)
    axes.stairs(line.used_bytes, line.edges_s, baseline=None, color=_INK, linewidth=0.9, linestyle=(0, (1, 1.2)))
    top = _draw_limits(axes, line)
    axes.set_ylim(0, top)
    _bytes_axis(axes, top)
    box, (left, right) = axes.get_window_extent(), axes.get_xlim()
    for band in line.bands:
        _label_band(axes, line, band, names[band.key], (right - left) / box.width, top / box.height)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    axes.grid(axis="y", color="#e6e8ec", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_title(_device_words(line), loc="left", fontsize=10.5, fontweight="bold", color=_INK)
    axes.set_title(_summary(line), loc="right", fontsize=9, color=_MUTED)


def _draw_band(axes: Axes, edges_s: Floats, band: Band) -> None:
    colour = trial_colour(*band.key)
    for run in band.runs():
        edges = edges_s[run.start : run.stop + 1]
        bottom = band.bottom_bytes[run]
        measured = bottom + np.nan_to_num(band.measured_bytes[run])
        _fill(
            axes, edges, bottom, band.top_bytes[run], facecolor=(*colour, 0.2), edgecolor=(*colour, 0.55), linewidth=0.6
        )
        _fill(axes, edges, bottom, measured, facecolor=colour, edgecolor="white", linewidth=0.5)


def _fill(axes: Axes, edges_s: Floats, low: Floats, high: Floats, **style: object) -> None:
    """Fill between two staircases; each value holds from its edge to the next one."""
    axes.fill_between(edges_s, np.append(low, low[-1]), np.append(high, high[-1]), step="post", **style)  # type: ignore[arg-type]


def _draw_limits(axes: Axes, line: DeviceTimeline) -> float:
    """Draw budget and total if they are within the picture, else say that they are above. Return the picture's top."""
    wanted = max(line.interesting_top_bytes * 1.15, 0.01 * line.budget_bytes)
    if wanted < _WORTH_SHOWING * line.budget_bytes:
        words = f"above: budget {format_bytes(line.budget_bytes)}, device {format_bytes(line.total_bytes)}  \u25b2"
        axes.annotate(words, (0.995, 0.97), xycoords="axes fraction", ha="right", va="top", fontsize=8.5, color=_BUDGET)
        return wanted
    top = max(wanted, line.budget_bytes * 1.1)
    if line.total_bytes <= 1.4 * line.budget_bytes:
        top = max(top, line.total_bytes * 1.06)
    for value, colour, style, word in (
        (line.budget_bytes, _BUDGET, (0, (6, 3)), "budget"),
        (line.total_bytes, _INK, "solid", "device"),
    ):
        if value > top:
            continue
        axes.axhline(value, color=colour, linewidth=1.3, linestyle=style)
        axes.annotate(
            f"{word} {format_bytes(value)}",
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8.5,
            color=colour,
        )
    return top


def _label_band(axes: Axes, line: DeviceTimeline, band: Band, name: str, s_per_px: float, bytes_per_px: float) -> None:
    """Write the trial's number wherever its band lies, as large as there is room; a small band stays without."""
    for size in _LABEL_SIZES:
        px = size * axes.figure.dpi / 72
        spots = line.label_spots(band, (0.65 * len(name) + 0.3) * px * s_per_px, 1.05 * px * bytes_per_px)
        for x, y in spots:
            text = axes.text(x, y, name, ha="center", va="center", fontsize=size, color=_INK, clip_on=True)
            text.set_path_effects([withStroke(linewidth=1.6, foreground="white", alpha=0.85)])
        if spots:
            return


def _lanes(ends: Sequence[TrialEnd], seconds: float) -> list[int]:
    """Give each end the first lane in which its mark and number do not touch the one before."""
    needed_s = 0.36 / (_WIDTH_IN - 1) * seconds
    free_from: list[float] = []
    lanes = []
    for end in ends:
        lane = next((lane for lane, free_s in enumerate(free_from) if free_s <= end.at_s), len(free_from))
        if lane == len(free_from):
            free_from.append(0.0)
        free_from[lane] = end.at_s + needed_s
        lanes.append(lane)
    return lanes


def _draw_ends(axes: Axes, ends: Sequence[TrialEnd], lanes: list[int], names: dict[TrialKey, str]) -> None:
    for end, lane in zip(ends, lanes, strict=True):
        marker, _ = _STATES.get(end.state, _OTHER_STATE)
        left_behind = (end.residue_bytes or 0) >= _NOTABLE_RESIDUE_BYTES
        axes.plot(
            end.at_s,
            lane,
            marker=marker,
            markersize=6.5,
            color=trial_colour(*end.key),
            clip_on=False,
            markeredgecolor=_BUDGET if left_behind else _INK,
            markeredgewidth=1.8 if left_behind else 0.5,
        )
        axes.annotate(
            names[end.key],
            (end.at_s, lane),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            color=_INK,
            annotation_clip=False,
        )
    axes.set_ylim(max(lanes, default=0) + 0.7, -0.5)
    axes.set_yticks([0], ["ends"], fontsize=8, color=_MUTED)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_MUTED)


def _device_words(line: DeviceTimeline) -> str:
    return line.device_name if line.device_id == line.device_name else f"{line.device_name}  ({line.device_id[:12]})"


def _summary(line: DeviceTimeline) -> str:
    words = [
        f"{len(line.bands)} trials",
        f"at most {int(line.count.max())} at once",
        f"peak {format_bytes(int(np.nanmax(line.measured_bytes)))} of {format_bytes(line.budget_bytes)}",
    ]
    back = [end.back_s for end in line.ends if end.back_s is not None]
    if back:
        words.append(f"memory back within {max(back):.1f} s")
    residue = [end.residue_bytes for end in line.ends if end.residue_bytes is not None]
    if residue and max(residue) >= _NOTABLE_RESIDUE_BYTES:
        words.append(f"up to {format_bytes(max(residue))} left behind")
    return "   ·   ".join(words)


def _bytes_axis(axes: Axes, top: float) -> None:
    unit, word = (GIB, "GiB") if top >= 2 * GIB else (MIB, "MiB")
    steps = next(step for step in _NICE_STEPS if top / unit / step <= 6)
    ticks = np.arange(0, top / unit, steps)
    axes.set_yticks(ticks * unit, [f"{tick:g}" for tick in ticks], fontsize=8.5, color=_INK)
    axes.set_ylabel(word, fontsize=9, color=_MUTED)


_NICE_STEPS = tuple(factor * 10.0**power for power in range(-2, 6) for factor in (1, 2, 2.5, 5))


def _time_axis(axes: Axes, seconds: float) -> None:
    unit, word = (3600, "hours") if seconds > 3 * 3600 else (60, "minutes") if seconds > 300 else (1, "seconds")
    steps = next(step for step in _NICE_STEPS if seconds / unit / step <= 12)
    ticks = np.arange(0, seconds / unit, steps)
    axes.set_xticks(ticks * unit, [f"{tick:g}" for tick in ticks], fontsize=8.5, color=_INK)
    axes.tick_params(axis="x", labelbottom=True)
    axes.set_xlabel(f"{word} since the first sample", fontsize=9, color=_MUTED)


def _legend(figure: Figure, timelines: Sequence[DeviceTimeline]) -> None:
    """Explain only what the picture shows."""
    ends = [end for line in timelines for end in line.ends]
    sample = trial_colour("", 1)
    handles: list[Patch | Line2D] = [
        Patch(facecolor=sample, label="trial: measured"),
        Patch(facecolor=(*sample, 0.2), edgecolor=(*sample, 0.55), label="trial: leased"),
    ]
    if any(np.nanmax(line.driver_bytes) > 0 for line in timelines):
        handles.append(Patch(facecolor=_DRIVER, label="driver"))
    if any(np.nanmax(line.strangers_bytes) > 0 for line in timelines):
        handles.append(Patch(facecolor=_STRANGERS, hatch="////", edgecolor="white", label="strangers"))
    handles.append(Line2D([], [], color=_INK, linewidth=0.9, linestyle=(0, (1, 1.2)), label="device: in use"))
    for marker, word in dict.fromkeys(_STATES.get(end.state, _OTHER_STATE) for end in ends):
        handles.append(Line2D([], [], linestyle="", marker=marker, color=_MUTED, markeredgecolor=_INK, label=word))
    if any((end.residue_bytes or 0) >= _NOTABLE_RESIDUE_BYTES for end in ends):
        handles.append(
            Line2D(
                [],
                [],
                linestyle="",
                marker="o",
                color="white",
                markeredgecolor=_BUDGET,
                markeredgewidth=1.8,
                label="left memory behind",
            )
        )
    studies = sorted({band.key[0] for line in timelines for band in line.bands} | {end.key[0] for end in ends})
    if len(studies) > 1:
        handles += [
            Line2D([], [], linestyle="", label=f"{chr(ord('a') + i % 26)}: {name}") for i, name in enumerate(studies)
        ]
    figure.legend(handles=handles, loc="outside lower left", ncols=min(len(handles), 9), fontsize=8.5, frameon=False)
