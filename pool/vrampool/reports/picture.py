"""The report as one tall PNG, for a chat or a paper: the figures at its head, what to change, and every picture."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.layout_engine import ConstrainedLayoutEngine

from vrampool.reports.content import WIDTH_IN, Report, Section
from vrampool.reports.page import OnStep
from vrampool.visualization.palette import INK, MUTED, PRUNED

_DPI = 130
_LINE_IN = 0.2
_WRAP = 128
_TITLE_IN = 0.5


def write_picture(report: Report, path: Path, on_step: OnStep = lambda _what, _part: None) -> None:
    """Write the picture; its ending may be that of any format that matplotlib writes from pixels (`.png`).

    Raises:
        OSError: the file cannot be written.
    """
    parts = [_head(report), _advice(report)]
    for index, section in enumerate(report.sections):
        on_step(section.title, index / len(report.sections))
        parts.append(_section(report, section))
    path.parent.mkdir(parents=True, exist_ok=True)
    imsave(path, np.concatenate(parts), dpi=_DPI)
    on_step("written", 1.0)


def _pixels(figure: Figure) -> Any:
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def _page(height_in: float) -> Figure:
    return Figure(figsize=(WIDTH_IN, height_in), dpi=_DPI, facecolor="white")


def _head(report: Report) -> Any:
    figure = _page(2.6)
    figure.text(0.03, 0.9, report.study.name, fontsize=19, fontweight="bold", color=INK, va="top")
    devices = ", ".join(sorted({name for _, name in report.study.devices}))
    figure.text(0.03, 0.7, f"{report.span}   ·   {devices}", fontsize=9.5, color=MUTED, va="top")
    step = 0.95 / len(report.tiles)
    for index, tile in enumerate(report.tiles):
        left = 0.03 + index * step
        figure.text(left, 0.5, tile.name, fontsize=8.5, color=MUTED, va="top")
        size = 15 if len(tile.value) <= 7 else 12 if len(tile.value) <= 9 else 10
        figure.text(left, 0.41, tile.value, fontsize=size, fontweight="bold", color=INK, va="top")
        figure.text(left, 0.25, textwrap.fill(tile.note, 21), fontsize=7, color=MUTED, va="top", linespacing=1.3)
    return _pixels(figure)


def _advice(report: Report) -> Any:
    blocks = [
        (item.title, textwrap.wrap(item.evidence, _WRAP), textwrap.wrap(item.action, _WRAP)) for item in report.advice
    ]
    lines = sum(len(evidence) + len(action) + 1.6 for _, evidence, action in blocks) + 2.4
    height_in = max(lines, 3.5) * _LINE_IN
    figure = _page(height_in)
    y = height_in - 0.1

    def write(words: str, **style: Any) -> None:
        nonlocal y
        figure.text(0.03, y / height_in, words, va="top", **style)
        y -= _LINE_IN

    write("What to change", fontsize=12.5, fontweight="bold", color=INK)
    y -= 0.12
    if not blocks:
        write("Nothing stands out.", fontsize=9, color=MUTED)
    for title, evidence, action in blocks:
        write(title, fontsize=9.5, fontweight="bold", color=PRUNED)
        for line in evidence:
            write(line, fontsize=8.5, color=MUTED)
        for line in action:
            write(line, fontsize=8.5, color=INK)
        y -= 0.6 * _LINE_IN
    return _pixels(figure)


def _section(report: Report, section: Section) -> Any:
    height_in = section.height_in + _TITLE_IN
    layout = ConstrainedLayoutEngine(rect=(0.02, 0.02, 0.96, 1 - _TITLE_IN / height_in))
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=_DPI, facecolor="white", layout=layout)
    figure.text(0.03, 1 - 0.1 / height_in, section.title, fontsize=12.5, fontweight="bold", color=INK, va="top")
    section.draw(figure, report.study)
    return _pixels(figure)
