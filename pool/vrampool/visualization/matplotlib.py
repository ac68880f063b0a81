"""The pictures with matplotlib, as `optuna.visualization.matplotlib` has Optuna's: each returns its axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vrampool.errors import InputError
from vrampool.visualization.attempts import StudyAttempts, read_attempts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Releases = Iterable[Mapping[str, Any]] | None

__all__ = [
    "plot_oom_map",
    "plot_startup_tax",
    "plot_trials_per_hour",
    "plot_vram_prediction",
    "plot_vram_slice",
    "plot_vram_timeline",
]


def plot_vram_timeline(study: Any, *, releases: Releases = None) -> list[Axes]:
    """Draw each attempt as a box on its device: as long as it ran, as high as its lease, filled to its peak.

    Args:
        study: An `optuna.Study`, or the handle of a submission, which also knows residue.
        releases: What came back after each trial (`queueing.History.releases`); None: what a handle knows.

    Raises:
        InputError: nothing of the study ran in a pool, or matplotlib is not installed.
    """
    gantt = _import("gantt")
    attempts = read_attempts(study, releases)
    height_in = gantt.ROW_IN * max(1, len(attempts.devices)) + 0.8
    return _draw(gantt.draw_gantt, attempts, height_in)


def plot_vram_prediction(study: Any) -> Axes:
    """Draw what was asked for against what was measured. Arguments and errors as of `plot_vram_timeline`."""
    return _draw(_import("charts").draw_prediction, read_attempts(study), 5.0)[0]


def plot_vram_slice(study: Any, params: Sequence[str] | None = None) -> list[Axes]:
    """Draw the peak against each parameter, or against those that are named.

    Arguments and errors as of `plot_vram_timeline`.
    """
    charts, attempts = _import("charts"), read_attempts(study)
    count = min(len(params if params is not None else attempts.distributions), charts.MOST_PARAMS) or 1
    rows = -(-count // (2 if count == 4 else 3))
    return _draw(lambda figure, found: charts.draw_slices(figure, found, params), attempts, 2.6 * rows + 0.4)


def plot_oom_map(study: Any, params: Sequence[str] | None = None) -> Axes:
    """Draw where trials ran out of memory, over two parameters: those named, or those that go with memory most.

    Arguments and errors as of `plot_vram_timeline`.
    """
    if params is not None and len(params) != 2:
        raise InputError(f"an OOM map has two parameters, not {len(params)}")
    charts = _import("charts")
    return _draw(lambda figure, found: charts.draw_oom_map(figure, found, params), read_attempts(study), 5.0)[0]


def plot_trials_per_hour(study: Any) -> list[Axes]:
    """Draw trials per hour over time, and how many ran at once. Arguments and errors as of `plot_vram_timeline`."""
    return _draw(_import("charts").draw_rate, read_attempts(study), 4.2)


def plot_startup_tax(study: Any, *, releases: Releases = None) -> list[Axes]:
    """Draw what attempts cost besides their objective. Arguments and errors as of `plot_vram_timeline`."""
    return _draw(_import("charts").draw_startup, read_attempts(study, releases), 3.8)


def _import(name: str) -> Any:
    try:
        if name == "gantt":
            from vrampool.visualization import gantt

            return gantt
        from vrampool.visualization import charts

        return charts
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise InputError("drawing needs matplotlib; install the extra: pip install 'vrampool[viz]'") from None


def _draw(draw: Callable[[Figure, StudyAttempts], list[Axes]], attempts: StudyAttempts, height_in: float) -> list[Axes]:
    """Draw on a figure of pyplot, as Optuna does: a notebook shows it, a script saves or shows it."""
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(11.0, height_in), layout="constrained")
    return draw(figure, attempts)
