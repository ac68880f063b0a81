"""The pictures with plotly, as Optuna's `plot_*` are: each returns a `plotly.graph_objects.Figure` to hover over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vrampool.errors import InputError
from vrampool.units import GIB, format_bytes
from vrampool.visualization.attempts import Attempt, StudyAttempts, choices_of, is_choice, is_log, read_attempts
from vrampool.visualization.measures import (
    NOTABLE_RESIDUE_BYTES,
    PARTS,
    box_words,
    gantt,
    params_by_influence,
    startup_tax,
    throughput,
)
from vrampool.visualization.palette import (
    ACCENT,
    BUDGET,
    COMPLETE,
    DRIVER,
    END_MARKERS,
    FAILED,
    MUTED,
    OTHER_MARKER,
    PRUNED,
    end_colour,
    trial_colour,
)

if TYPE_CHECKING:
    from plotly.graph_objs._figure import Figure

Releases = Iterable[Mapping[str, Any]] | None
_MOST_PARAMS = 9


def _plotly() -> Any:
    try:
        import plotly.graph_objects as graph_objects
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "plotly":
            raise
        raise InputError(
            "interactive pictures need plotly; install the extra: pip install 'vrampool[viz]', "
            "or draw with vrampool.visualization.matplotlib"
        ) from None
    return graph_objects


def plot_vram_timeline(study: Any, *, releases: Releases = None) -> Figure:
    """Draw each attempt as a box on its device: as long as it ran, as high as its lease, filled to its peak.

    Args:
        study: An `optuna.Study`, or the handle of a submission, which also knows residue.
        releases: What came back after each trial (`queueing.History.releases`); None: what a handle knows.

    Raises:
        InputError: nothing of the study ran in a pool, or plotly is not installed.
    """
    _plotly()
    from plotly.subplots import make_subplots

    attempts = read_attempts(study, releases)
    devices, seconds = gantt(attempts)
    if not devices:
        raise InputError(f"no trial of {attempts.name} has ended yet, so there is no memory to draw")
    figure = make_subplots(len(devices), 1, shared_xaxes=True, subplot_titles=[device.name for device in devices])
    for row, device in enumerate(devices, 1):
        for box in device.boxes:
            colour = trial_colour(attempts.name, box.attempt.number)
            left, right, low = box.left_s, box.right_s, box.bottom_bytes / GIB
            edge = FAILED if box.attempt.out_of_memory else _rgba(colour, 0.7)
            for height, fill in ((box.height_bytes, _rgba(colour, 0.2)), (box.peak_bytes, _rgba(colour, 1.0))):
                figure.add_scatter(
                    x=[left, left, right, right, left],
                    y=[low, low + height / GIB, low + height / GIB, low, low],
                    mode="lines",
                    fill="toself",
                    fillcolor=fill,
                    line={"color": edge, "width": 1},
                    hoveron="fills",
                    text=box_words(box),
                    hoverinfo="text",
                    showlegend=False,
                    row=row,
                    col=1,
                )
            _add_residue(figure, box, right, low, seconds, row)
        if device.budget_bytes is not None:
            figure.add_hline(
                y=device.budget_bytes / GIB,
                line={"color": BUDGET, "dash": "dash"},
                annotation_text=f"budget {format_bytes(device.budget_bytes)}",
                annotation_font_color=BUDGET,
                row=row,
                col=1,
            )
        figure.update_yaxes(title_text="GiB", rangemode="tozero", row=row, col=1)
    figure.update_xaxes(title_text="seconds since the first trial", row=len(devices), col=1)
    return _finish(figure, f"Memory of the devices: {attempts.name}", height=300 * len(devices) + 120)


def _add_residue(figure: Any, box: Any, right: float, low: float, seconds: float, row: int) -> None:
    residue = box.attempt.residue_bytes or 0
    if residue < NOTABLE_RESIDUE_BYTES:
        return
    end = right + seconds / 150
    figure.add_scatter(
        x=[right, right, end, end, right],
        y=[low, low + residue / GIB, low + residue / GIB, low, low],
        mode="lines",
        fill="toself",
        fillcolor=BUDGET,
        line={"color": BUDGET, "width": 1},
        hoveron="fills",
        text=f"trial {box.attempt.number} left {format_bytes(residue)} behind",
        hoverinfo="text",
        showlegend=False,
        row=row,
        col=1,
    )


def plot_vram_prediction(study: Any) -> Figure:
    """Draw what was asked for against what was measured. Arguments and errors as of `plot_vram_timeline`."""
    graph = _plotly()
    attempts = read_attempts(study)
    rows = [a for a in attempts.measured if a.memory.request_bytes or a.memory.predicted_bytes]
    if not rows:
        raise InputError(f"every trial of {attempts.name} had a device to itself: nothing was asked for in bytes")
    figure = graph.Figure()
    asked = {a.number: (a.memory.request_bytes or a.memory.predicted_bytes or 0) / GIB for a in rows}
    for end, own in _by_end(rows):
        figure.add_scatter(
            x=[asked[a.number] for a in own],
            y=[(a.memory.peak_bytes or 0) / GIB for a in own],
            text=[_words(a) for a in own],
            **_style(end),
        )
    both = [*asked.values(), *((a.memory.peak_bytes or 0) / GIB for a in rows)]
    ends = [min(both) / 1.2, max(both) * 1.2]
    figure.add_scatter(x=ends, y=ends, mode="lines", line={"color": MUTED}, name="peak = asked for", hoverinfo="skip")
    figure.update_xaxes(type="log", title_text="asked for (GiB)")
    figure.update_yaxes(type="log", title_text="measured peak (GiB)")
    return _finish(figure, f"Asked for and measured: {attempts.name}")


def plot_vram_slice(study: Any, params: Sequence[str] | None = None) -> Figure:
    """Draw the peak against each parameter, or against those named. Arguments and errors as of `plot_vram_timeline`."""
    _plotly()
    from plotly.subplots import make_subplots

    attempts = read_attempts(study)
    names = list(params) if params is not None else params_by_influence(attempts)[:_MOST_PARAMS]
    names = [name for name in names if any(name in a.memory.params for a in attempts.measured)]
    if not names:
        raise InputError(f"no measured trial of {attempts.name} has such a parameter")
    figure = make_subplots(1, len(names), shared_yaxes=True)
    for column, name in enumerate(names, 1):
        rows = [a for a in attempts.measured if name in a.memory.params]
        for end, own in _by_end(rows):
            figure.add_scatter(
                x=_values(attempts, name, own),
                y=[(a.memory.peak_bytes or 0) / GIB for a in own],
                text=[_words(a) for a in own],
                row=1,
                col=column,
                **_style(end) | {"showlegend": column == 1, "legendgroup": end},
            )
        figure.update_xaxes(title_text=name, **_scale(attempts, name, rows), row=1, col=column)
    figure.update_yaxes(type="log", title_text="peak (GiB)", row=1, col=1)
    figure.update_yaxes(type="log")
    return _finish(figure, f"Memory against parameters: {attempts.name}")


def plot_oom_map(study: Any, params: Sequence[str] | None = None) -> Figure:
    """Draw where trials ran out of memory, over two parameters: those named, or those that go with memory most.

    Arguments and errors as of `plot_vram_timeline`.
    """
    graph = _plotly()
    attempts = read_attempts(study)
    names = list(params) if params is not None else params_by_influence(attempts)[:2]
    rows = [a for a in attempts.ended if all(name in a.memory.params for name in names)]
    if len(names) != 2 or not rows:
        raise InputError(f"an OOM map needs two parameters that trials of {attempts.name} have")
    figure = graph.Figure()
    largest = max((a.memory.peak_bytes or 0 for a in rows), default=1) or 1
    for end, own in _by_end(rows):
        style = _style(end)
        style["marker"] |= {"size": [7 + 13 * ((a.memory.peak_bytes or 0) / largest) ** 0.5 for a in own]}
        figure.add_scatter(
            x=_values(attempts, names[0], own),
            y=_values(attempts, names[1], own),
            text=[_words(a) for a in own],
            **style,
        )
    figure.update_xaxes(title_text=names[0], **_scale(attempts, names[0], rows))
    figure.update_yaxes(title_text=names[1], **_scale(attempts, names[1], rows))
    return _finish(figure, f"Where memory ran out: {attempts.name}")


def plot_trials_per_hour(study: Any) -> Figure:
    """Draw trials per hour over time, and how many ran at once. Arguments and errors as of `plot_vram_timeline`."""
    _plotly()
    from plotly.subplots import make_subplots

    attempts = read_attempts(study)
    found = throughput(attempts)
    middles = [edge + found.window_s / 2 for edge in found.edges_s[:-1]]
    figure = make_subplots(2, 1, shared_xaxes=True, row_heights=[0.7, 0.3])
    for counts, name, colour in (
        (found.counted, "complete and pruned", COMPLETE),
        (found.others, "failed attempts", FAILED),
    ):
        rates = [count * 3600 / found.window_s for count in counts]
        if any(rates):
            figure.add_bar(x=middles, y=rates, width=found.window_s, name=name, marker_color=colour, row=1, col=1)
    figure.add_bar(
        x=middles, y=found.running, width=found.window_s, name="at once", marker_color=ACCENT, opacity=0.5, row=2, col=1
    )
    figure.add_hline(
        y=found.per_hour, line={"dash": "dash"}, annotation_text=f"mean {found.per_hour:,.0f}", row=1, col=1
    )
    figure.update_yaxes(title_text="trials per hour", row=1, col=1)
    figure.update_yaxes(title_text="at once", row=2, col=1)
    figure.update_xaxes(title_text="seconds since the first trial", row=2, col=1)
    figure.update_layout(barmode="stack", bargap=0)
    return _finish(figure, f"Trials per hour: {attempts.name}")


def plot_startup_tax(study: Any, *, releases: Releases = None) -> Figure:
    """Draw what attempts cost besides their objective. Arguments and errors as of `plot_vram_timeline`."""
    graph = _plotly()
    attempts = read_attempts(study, releases)
    tax = startup_tax(attempts)
    if not tax.numbers:
        raise InputError(f"no attempt of {attempts.name} has reached its objective yet")
    colours = {"spawn_s": PRUNED, "handover_s": ACCENT, "run_s": DRIVER, "back_s": FAILED}
    figure = graph.Figure()
    for part, meaning in PARTS.items():
        figure.add_bar(x=list(tax.numbers), y=list(tax.parts[part]), name=meaning, marker_color=colours[part])
    figure.update_layout(barmode="stack", bargap=0.1, legend={"orientation": "h", "y": -0.2})
    figure.update_xaxes(title_text="trial")
    figure.update_yaxes(title_text="seconds")
    return _finish(figure, f"Start-up tax {tax.share:.1%}: {attempts.name}")


# ---- shared --------------------------------------------------------------------------------------------


def _rgba(colour: tuple[float, float, float], alpha: float) -> str:
    red, green, blue = (round(part * 255) for part in colour)
    return f"rgba({red},{green},{blue},{alpha})"


def _by_end(rows: Sequence[Attempt]) -> list[tuple[str, list[Attempt]]]:
    return [(end, [a for a in rows if a.end == end]) for end in sorted({a.end for a in rows})]


def _style(end: str) -> dict[str, Any]:
    marker = {"symbol": END_MARKERS.get(end, OTHER_MARKER)[1], "color": end_colour(end), "size": 8}
    name = "out of memory" if end == "oom" else end
    return {"mode": "markers", "name": name, "marker": marker, "hoverinfo": "text"}


def _words(attempt: Attempt) -> str:
    memory = attempt.memory
    params = "<br>".join(f"{name} = {value}" for name, value in memory.params.items())
    asked = format_bytes(memory.request_bytes) if memory.request_bytes else "a whole device"
    peak = format_bytes(memory.peak_bytes)
    return f"trial {attempt.number}: {attempt.how}<br>asked for {asked}, peak {peak}<br>{params}"


def _values(study: StudyAttempts, name: str, rows: Sequence[Attempt]) -> list[Any]:
    values = [a.memory.params[name] for a in rows]
    return [str(value) for value in values] if is_choice(study.distributions.get(name), values) else values


def _scale(study: StudyAttempts, name: str, rows: Sequence[Attempt]) -> dict[str, Any]:
    values = [a.memory.params[name] for a in rows]
    if is_choice(study.distributions.get(name), values):
        choices = choices_of(study.distributions.get(name), values)
        return {"type": "category", "categoryorder": "array", "categoryarray": choices}
    return {"type": "log" if is_log(study.distributions.get(name), values) else "linear"}


def _finish(figure: Figure, title: str, *, height: int | None = None) -> Figure:
    figure.update_layout(title=title, height=height, margin={"t": 70, "r": 30})
    return figure
