"""Draws the VRAM Gantt with matplotlib: each trial a box on its device, as long as it ran and as high as its lease."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke

from vrampool.errors import InputError
from vrampool.units import format_bytes
from vrampool.visualization.attempts import StudyAttempts
from vrampool.visualization.drawing import MOST_TIPS, bytes_axis, frame, label, time_axis, tip
from vrampool.visualization.measures import NOTABLE_RESIDUE_BYTES, Box, DeviceGantt, box_words, gantt
from vrampool.visualization.palette import BUDGET, FAILED, INK, MUTED, PAPER, trial_colour

ROW_IN = 2.9
#: A budget is drawn where it is no more than this many times what was used; else it is said in words.
_WITHIN = 2.5
#: With more boxes than this on a device they are too small for their numbers, which would only make the page large.
_MOST_NUMBERS = 300


def draw_gantt(figure: Figure, study: StudyAttempts) -> list[Axes]:
    """Draw one row per device.

    Raises:
        InputError: no attempt has ended yet.
    """
    devices, seconds = gantt(study)
    if not devices:
        raise InputError(f"no trial of {study.name} has ended yet, so there is no memory to draw")
    rows = list(figure.subplots(len(devices), 1, sharex=True, squeeze=False)[:, 0])
    index = 0
    for axes, device in zip(rows, devices, strict=True):
        axes.set_xlim(0, seconds)
        top = _limits(axes, device)
        axes.set_ylim(0, top)
        note = f"{len(device.boxes)} attempts   ·   at most {device.at_once} at once"
        residue = device.residue_bytes
        if residue is not None:
            note += "   ·   " + (
                f"up to {format_bytes(residue)} left behind"
                if residue >= NOTABLE_RESIDUE_BYTES
                else "all memory came back"
            )
        frame(axes, device.name, note)
        label(axes, "", bytes_axis(axes.yaxis, top))
        for box in device.boxes:
            _draw_box(axes, study.name, box, index, seconds)
            index += 1
    figure.draw_without_rendering()
    for axes, device in zip(rows, devices, strict=True):
        _number_boxes(axes, device, seconds)
    time_axis(rows[-1], seconds)
    _legend(figure, rows[0], devices)
    return rows


def _limits(axes: Axes, device: DeviceGantt) -> float:
    """Draw the budget where it is near enough, else say it. Return the top of the picture."""
    top = device.top_bytes * 1.12 or 1.0
    if device.budget_bytes is None:
        return top
    words = f"budget {format_bytes(device.budget_bytes)}"
    if device.budget_bytes > _WITHIN * top:
        axes.annotate(
            f"{words}, above  \u25b2",
            (0.995, 0.97),
            xycoords="axes fraction",
            ha="right",
            va="top",
            fontsize=8.5,
            color=BUDGET,
        )
        return top
    axes.axhline(device.budget_bytes, color=BUDGET, linewidth=1.3, linestyle=(0, (6, 3)), zorder=5)
    axes.annotate(
        words,
        (1, device.budget_bytes),
        xycoords=("axes fraction", "data"),
        xytext=(-4, 2),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8.5,
        color=BUDGET,
    )
    return max(top, device.budget_bytes * 1.12)


def _draw_box(axes: Axes, study: str, box: Box, index: int, seconds: float) -> None:
    attempt = box.attempt
    colour = trial_colour(study, attempt.number)
    width = max(box.right_s - box.left_s, seconds / 2000)
    lease = Rectangle(
        (box.left_s, box.bottom_bytes),
        width,
        box.height_bytes,
        facecolor=(*colour, 0.2),
        edgecolor=FAILED if attempt.out_of_memory else (*colour, 0.6),
        linewidth=1.4 if attempt.out_of_memory else 0.7,
        zorder=2,
    )
    peak = Rectangle((box.left_s, box.bottom_bytes), width, box.peak_bytes, facecolor=colour, linewidth=0, zorder=2.1)
    if index < MOST_TIPS:
        words = box_words(box)
        lease.set_gid(tip(2 * index, words))
        peak.set_gid(tip(2 * index + 1, words))
    axes.add_patch(lease)
    axes.add_patch(peak)
    if box.cap_bytes is not None:
        level = box.bottom_bytes + box.cap_bytes
        axes.plot([box.left_s, box.left_s + width], [level, level], color=INK, linewidth=0.8, linestyle=(0, (1, 1.4)))
    residue = attempt.residue_bytes or 0
    if residue >= NOTABLE_RESIDUE_BYTES:
        left = box.left_s + width
        bar = Rectangle(
            (left, box.bottom_bytes), seconds / 150, residue, facecolor=BUDGET, edgecolor=PAPER, linewidth=0.4, zorder=6
        )
        bar.set_gid(tip(10**6 + index, f"trial {attempt.number} left {format_bytes(residue)} behind"))
        axes.add_patch(bar)
    if attempt.out_of_memory:
        axes.plot(
            box.left_s + width, box.bottom_bytes + box.height_bytes, "X", markersize=6.5, color=FAILED,
            markeredgecolor="white", markeredgewidth=0.5, clip_on=False, zorder=7,
        )  # fmt: skip


def _number_boxes(axes: Axes, device: DeviceGantt, seconds: float) -> None:
    """Write the trial's number where its box has room for it; not in a crowd, where pointing at a box tells it."""
    if len(device.boxes) > _MOST_NUMBERS:
        return
    room = axes.get_window_extent()
    s_per_px, bytes_per_px = seconds / room.width, axes.get_ylim()[1] / room.height
    px = axes.figure.dpi / 72
    for box in device.boxes:
        words = str(box.attempt.number)
        for size in (9.0, 7.0, 5.5):
            wide = (0.65 * len(words) + 0.4) * size * px * s_per_px
            high = 1.15 * size * px * bytes_per_px
            if box.right_s - box.left_s >= wide and box.height_bytes >= high:
                text = axes.text(
                    (box.left_s + box.right_s) / 2,
                    box.bottom_bytes + box.height_bytes / 2,
                    words,
                    ha="center",
                    va="center",
                    fontsize=size,
                    color=INK,
                    clip_on=True,
                    zorder=8,
                )
                text.set_path_effects([withStroke(linewidth=1.6, foreground=PAPER, alpha=0.8)])
                break


def _legend(figure: Figure, axes: Axes, devices: tuple[DeviceGantt, ...]) -> None:
    boxes = [box for device in devices for box in device.boxes]
    sample = trial_colour("", 1)
    handles: list[Patch | Line2D] = [
        Patch(facecolor=sample, label="peak"),
        Patch(facecolor=(*sample, 0.2), edgecolor=(*sample, 0.6), label="lease"),
    ]
    if any(box.cap_bytes is not None for box in boxes):
        handles.append(Line2D([], [], color=INK, linewidth=0.8, linestyle=(0, (1, 1.4)), label="cap"))
    if any(box.attempt.out_of_memory for box in boxes):
        handles.append(Line2D([], [], color=FAILED, marker="X", linestyle="", markersize=6.5, label="out of memory"))
    if any((box.attempt.residue_bytes or 0) >= NOTABLE_RESIDUE_BYTES for box in boxes):
        handles.append(Patch(facecolor=BUDGET, label="residue"))
    figure.legend(
        handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=8.5, labelcolor=MUTED
    )
