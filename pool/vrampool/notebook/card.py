"""What a handle shows of its submission in a notebook. Pure: from a state to text and HTML without scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from vrampool.units import format_bytes

#: Colours that can be read on a light and on a dark page alike; words take the page's own.
_COLOURS = {"COMPLETE": "#2f9e8b", "PRUNED": "#c9962f", "FAIL": "#d4564d", "RUNNING": "#5b8fd0"}
_WORDS = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
_LINE = "rgba(128,136,148,.35)"
_FAINT = "rgba(128,136,148,.18)"
#: Rows of running trials, and points of the curve, at most: a saved notebook stays small.
_MOST_RUNNING = 8
_MOST_POINTS = 240
_CURVE = (360, 96)


@dataclass(frozen=True)
class RunningLine:
    """A trial that runs."""

    number: int
    device: str
    held_bytes: int | None
    lease_bytes: int
    seconds: float


@dataclass(frozen=True)
class CardState:
    """All that a card shows."""

    study: str
    state: str
    finished: int
    wanted: int | None
    waiting: int = 0
    counts: dict[str, int] = field(default_factory=dict)  #: finished root trials by Optuna's state
    running: int = 0
    best: str = ""  #: in words: "0.9812 (trial 4)"
    best_params: dict[str, Any] = field(default_factory=dict)
    values: Sequence[float] = ()  #: of complete trials, in the order of their ends; one objective only
    maximize: bool = False
    ooms: int = 0  #: attempts that ran out of memory
    retries: int = 0
    trials: Sequence[RunningLine] = ()
    failure: str = ""  #: the most frequent one
    reason: str = ""
    note: str = ""  #: what the reader is told, after an interrupt for example
    clock: str = ""  #: when it was like this


def to_text(state: CardState) -> str:
    """Return the card as plain text."""
    of = f"/{state.wanted}" if state.wanted is not None else ""
    counts = ", ".join(f"{count} {_WORDS.get(name, name.lower())}" for name, count in sorted(state.counts.items()))
    lines = [
        f"{state.study}: {state.state}, {state.finished}{of} finished ({counts or 'none yet'}), {state.running} running"
    ]
    if state.best:
        lines.append(f"best {state.best}" + (f" with {_params(state.best_params)}" if state.best_params else ""))
    if state.ooms:
        lines.append(f"{state.ooms} out of memory, {state.retries} tried again")
    for trial in state.trials[:_MOST_RUNNING]:
        lines.append(f"trial {trial.number} on {trial.device}: {_memory(trial)}, {trial.seconds:.0f} s")
    lines += [words for words in (state.failure and f"fails: {state.failure}", state.reason, state.note) if words]
    return "\n".join(lines)


def to_html(state: CardState) -> str:
    """Return the card as HTML that needs nothing else: styles are inline, the pictures SVG."""
    of = f" of {state.wanted}" if state.wanted is not None else ""
    head = (
        f'<div style="display:flex;gap:10px;align-items:baseline;flex-wrap:wrap"><b style="font-size:15px">'
        f'{escape(state.study)}</b><span style="opacity:.75">{escape(state.state)}</span>'
        f'<span style="margin-left:auto;opacity:.6;font-size:12px">{escape(state.clock)}</span></div>'
    )
    counts = "".join(f" &middot; {_count(name, count)}" for name, count in _shares(state))
    waiting = f" &middot; {state.waiting} waiting" if state.waiting else ""
    parts = [
        head,
        f'<div style="margin:6px 0 4px">{_progress(state)}</div>',
        f'<div style="font-size:13px">{state.finished}{of} finished{counts}{waiting}</div>',
        '<div style="display:flex;flex-wrap:wrap;gap:8px 28px;margin-top:8px">',
        f'<div style="flex:1 1 260px;max-width:380px">{_best(state)}</div>',
        f'<div style="flex:1 1 300px">{_running(state)}</div>',
        "</div>",
    ]
    if state.ooms:
        retried = f", {state.retries} tried again" if state.retries else ""
        parts.append(_line(f"{state.ooms} out of memory{retried}", _COLOURS["FAIL"]))
    if state.failure:
        parts.append(_line(f"fails: {state.failure}", _COLOURS["FAIL"]))
    parts += [_line(words) for words in (state.reason, state.note) if words]
    style = (
        f"font-family:system-ui,sans-serif;border:1px solid {_LINE};border-radius:8px;padding:12px 14px;max-width:820px"
    )
    return f'<div class="vrampool-card" style="{style}">{"".join(parts)}</div>'


def _line(words: str, colour: str = "") -> str:
    style = f"color:{colour}" if colour else "opacity:.8"
    return f'<div style="font-size:13px;margin-top:6px;{style}">{escape(words)}</div>'


def _shares(state: CardState) -> list[tuple[str, int]]:
    shares = [(name, state.counts.get(name, 0)) for name in ("COMPLETE", "PRUNED", "FAIL")]
    return [(name, count) for name, count in [*shares, ("RUNNING", state.running)] if count]


def _count(name: str, count: int) -> str:
    square = f'<span style="color:{_COLOURS[name]}">&#9632;</span>'
    return f"{square} {count} {_WORDS[name]}"


def _progress(state: CardState) -> str:
    total = max(state.wanted or 0, state.finished + state.running, 1)
    left, rects = 0.0, []
    for name, count in _shares(state):
        width = 100 * count / total
        pale = ' fill-opacity=".45"' if name == "RUNNING" else ""
        rects.append(f'<rect x="{left:.2f}" width="{width:.2f}" height="10" fill="{_COLOURS[name]}"{pale}/>')
        left += width
    label = escape(f"{state.finished} of {total} trials have finished", quote=True)
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 100 10" preserveAspectRatio="none" width="100%" height="8" '
        f'style="display:block;border-radius:4px"><rect width="100" height="10" fill="{_FAINT}"/>{"".join(rects)}</svg>'
    )


def _best(state: CardState) -> str:
    if not state.best:
        return '<div style="font-size:13px;opacity:.7">no trial is complete yet</div>'
    words = f'<div style="font-size:13px">best <b>{escape(state.best)}</b></div>'
    if state.best_params:
        words += f'<div style="font-size:12px;opacity:.75">{escape(_params(state.best_params))}</div>'
    return words + _curve(state)


def _curve(state: CardState) -> str:
    """Draw each value as a dot and the best so far as a line."""
    values = [value for value in state.values if math.isfinite(value)]
    if len(values) < 2:
        return ""
    pick = max if state.maximize else min
    best = _running_best(values, pick)
    step = max(1, math.ceil(len(values) / _MOST_POINTS))
    shown = list(range(0, len(values), step))
    lowest, highest = _range(values, maximize=state.maximize)
    margin = (highest - lowest) * 0.04 or max(abs(highest), 1e-9) * 0.05
    low, high = lowest - margin, highest + margin
    width, height = _CURVE

    def place(index: int, value: float) -> tuple[float, float]:
        inside = min(max((value - low) / (high - low), 0.0), 1.0)
        return 4 + (width - 44) * index / (len(values) - 1), height - 6 - (height - 12) * inside

    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.8"/>' for x, y in (place(index, values[index]) for index in shown)
    )
    steps = [place(0, best[0])]
    for index in [*shown[1:], len(values) - 1]:
        x, y = place(index, best[index])
        steps += [(x, steps[-1][1]), (x, y)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in steps)
    over, under = "&gt; " if max(values) > highest else "", "&lt; " if min(values) < lowest else ""
    label = escape(f"values of {len(values)} trials; the best so far is {state.best}", quote=True)
    style = f"display:block;margin-top:4px;max-width:{width}px;border-bottom:1px solid {_LINE}"
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {width} {height}" width="100%" style="{style}">'
        f'<g fill="{_COLOURS["RUNNING"]}" fill-opacity=".75">{dots}</g>'
        f'<polyline points="{line}" fill="none" stroke="{_COLOURS["COMPLETE"]}" stroke-width="1.8"/>'
        f'<g font-size="9.5" fill="currentColor" fill-opacity=".6" text-anchor="end">'
        f'<text x="{width}" y="{place(0, highest)[1] + 3:.1f}">{over}{highest:.4g}</text>'
        f'<text x="{width}" y="{place(0, lowest)[1] + 3:.1f}">{under}{lowest:.4g}</text></g></svg>'
    )


def _running_best(values: Sequence[float], pick: Any) -> list[float]:
    best = [values[0]]
    for value in values[1:]:
        best.append(pick(best[-1], value))
    return best


def _range(values: Sequence[float], *, maximize: bool) -> tuple[float, float]:
    """Return what is shown: from the best value to the worst that is not far worse than most."""
    ordered = sorted(values, reverse=maximize)
    best, most = ordered[0], ordered[int(0.85 * (len(ordered) - 1))]
    edge = most + 1.5 * (most - best)
    worst = max(ordered[-1], edge) if maximize else min(ordered[-1], edge)
    return min(best, worst), max(best, worst)


def _running(state: CardState) -> str:
    if not state.trials:
        return ""
    rows = []
    for trial in state.trials[:_MOST_RUNNING]:
        part = min((trial.held_bytes or 0) / max(trial.lease_bytes, 1), 1.0)
        bar = (
            f'<svg viewBox="0 0 100 10" preserveAspectRatio="none" width="90" height="8" style="border-radius:2px">'
            f'<rect width="100" height="10" fill="{_FAINT}"/>'
            f'<rect width="{100 * part:.1f}" height="10" fill="{_COLOURS["RUNNING"]}"/></svg>'
        )
        cell = "padding:1px 10px 1px 0;border:none;text-align:left;background:none"
        rows.append(
            f'<tr style="background:none"><td style="{cell}">trial {trial.number}</td><td style="{cell}">{bar}</td>'
            f'<td style="{cell}">{escape(_memory(trial))}</td>'
            f'<td style="{cell};opacity:.7">{trial.seconds:.0f} s</td></tr>'
        )
    more = len(state.trials) - _MOST_RUNNING
    extra = f'<div style="font-size:12px;opacity:.7">and {more} more</div>' if more > 0 else ""
    style = "color:inherit;font-size:12.5px;border:none;border-collapse:collapse;margin:0"
    return f'<table style="{style}">{"".join(rows)}</table>{extra}'


def _memory(trial: RunningLine) -> str:
    if trial.held_bytes is None:
        return f"{format_bytes(trial.lease_bytes)} leased"
    return f"{format_bytes(trial.held_bytes)} of {format_bytes(trial.lease_bytes)} leased"


def _params(params: dict[str, Any]) -> str:
    words = [f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in params.items()]
    return ", ".join(words)[:300]
