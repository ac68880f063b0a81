"""What a report says: the study in figures, what to change, and which pictures are drawn. Pure but for its clock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vrampool.memory.explaining import Explanation, explain
from vrampool.memory.peaks import Taught
from vrampool.messages import EndKind
from vrampool.reports.advice import Advice, advise
from vrampool.units import format_bytes
from vrampool.visualization import charts
from vrampool.visualization.attempts import StudyAttempts, gather
from vrampool.visualization.gantt import ROW_IN, draw_gantt
from vrampool.visualization.measures import NOTABLE_RESIDUE_BYTES, gantt, startup_tax, throughput

WIDTH_IN = 11.0


@dataclass(frozen=True)
class Tile:
    """One figure at the head of the report."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """One picture with what it says."""

    key: str
    title: str
    caption: str
    draw: Callable[[Figure, StudyAttempts], list[Axes]]
    height_in: float


@dataclass(frozen=True)
class Report:
    """All of it."""

    study: StudyAttempts
    explanation: Explanation
    advice: tuple[Advice, ...]
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    made_at: float  #: seconds since the epoch
    span: str  #: from when to when

    @property
    def title(self) -> str:
        return f"{self.study.name}: memory and time"


def make_report(
    study: optuna.Study, releases: Iterable[Mapping[str, Any]] | None, taught: Taught | None = None
) -> Report:
    """Read a study and say what its report holds.

    Args:
        study: The study.
        releases: What came back after each trial; None: not known, for the pool has ended.
        taught: What the pool learns from; None: not known, so the study's own trials are.

    Raises:
        InputError: none of its trials has run in a pool.
    """
    releases = None if releases is None else list(releases)
    attempts = gather(study.study_name, study.get_trials(deepcopy=False), releases or ())
    explanation = explain([attempt.memory for attempt in attempts.attempts], taught)
    return Report(
        study=attempts,
        explanation=explanation,
        advice=tuple(advise(attempts, explanation.drivers, explanation.record)),
        tiles=(
            *_tiles(study, attempts, releases is not None),
            _prediction_tile(explanation),
            _reserved_tile(explanation),
        ),
        sections=tuple(_sections(attempts)),
        made_at=time.time(),
        span=_span(attempts),
    )


def _span(study: StudyAttempts) -> str:
    first, last = min(a.start_s for a in study.attempts), max(a.end_s for a in study.attempts)
    begin, end = time.localtime(first), time.localtime(last)
    same_day = begin[:3] == end[:3]
    until = time.strftime("%H:%M:%S" if same_day else "%d %b %Y %H:%M", end)
    return f"{time.strftime('%d %b %Y %H:%M:%S' if same_day else '%d %b %Y %H:%M', begin)} to {until}"


def _tiles(study: optuna.Study, attempts: StudyAttempts, knows_releases: bool) -> Iterable[Tile]:
    states = Counter(a.end for a in attempts.attempts)
    well = states[EndKind.COMPLETE] + states[EndKind.PRUNED]
    words = ", ".join(f"{count} {end}" for end, count in states.most_common() if end != EndKind.COMPLETE).replace(
        "oom", "out of memory"
    )
    yield Tile(
        "trials",
        f"{well:,}",
        f"complete and pruned, of {len(attempts.attempts)} attempts" + (f" ({words})" if words else ""),
    )
    yield Tile("best", *_best(study))
    rate = throughput(attempts)
    yield Tile("trials per hour", f"{rate.per_hour:,.0f}", f"at most {max(rate.running):.1f} at once")
    yield _peak_tile(attempts)
    ooms = [a for a in attempts.attempts if a.out_of_memory]
    verdicts = Counter(a.verdict or "unknown" for a in ooms)
    note = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()) or "no attempt"
    yield Tile("out of memory", str(len(ooms)), note)
    tax = startup_tax(attempts)
    yield Tile(
        "start-up tax",
        f"{tax.share:.1%}",
        f"of the attempts' time; median {tax.median_s('handover_s'):.2f} s to hand over",
    )
    yield _residue_tile(attempts, knows_releases)


def _best(study: optuna.Study) -> tuple[str, str]:
    if len(study.directions) > 1:
        front = len(study.best_trials)
        return str(front), "trials on the Pareto front"
    try:
        best = study.best_trial
    except ValueError:
        return "none", "no trial is complete"
    return f"{best.value:.6g}", f"trial {best.number}, {study.direction.name.lower()}"


def _peak_tile(attempts: StudyAttempts) -> Tile:
    peaks = sorted(a.memory.peak_bytes or 0 for a in attempts.measured)
    if not peaks:
        return Tile("largest peak", "unknown", "nothing was measured")
    return Tile("largest peak", format_bytes(peaks[-1]), f"median {format_bytes(peaks[len(peaks) // 2])}")


def _prediction_tile(explanation: Explanation) -> Tile:
    record = explanation.record
    if record.median_error is None:
        return Tile("prediction", "none", "no request was predicted from parameters")
    note = f"median error of {record.predicted} predictions; {record.under} asked for too little"
    return Tile("prediction", f"\u00b1{record.median_error:.0%}", note)


def _reserved_tile(explanation: Explanation) -> Tile:
    over = explanation.record.over_reserved
    if over is None:
        return Tile("reserved", "unknown", "nothing was measured")
    return Tile("reserved", f"\u00d7{1 + over:.2f}", "what trials held, over their time")


def _residue_tile(attempts: StudyAttempts, known: bool) -> Tile:
    seen = [a for a in attempts.attempts if a.residue_bytes is not None]
    if not known or not seen:
        return Tile("residue", "unknown", "a pool that runs tells it" if not known else "no end was seen")
    left = [a for a in seen if (a.residue_bytes or 0) >= NOTABLE_RESIDUE_BYTES]
    if left:
        return Tile(
            "residue", format_bytes(max(a.residue_bytes or 0 for a in left)), f"after {len(left)} of {len(seen)} ends"
        )
    slowest = max((a.back_s or 0.0 for a in seen), default=0.0)
    return Tile("residue", "none", f"the memory of {len(seen)} attempts came back, within {slowest:.1f} s")


def _sections(attempts: StudyAttempts) -> Sequence[Section]:
    devices, _ = gantt(attempts)
    found = []
    if devices:
        found.append(
            Section(
                "timeline",
                "Memory of the devices over time",
                "Each box is an attempt: as long as it ran, as high as its lease at the end (pale), filled to its "
                "peak. The dotted line is its cap. Room below the budget is memory that no trial had.",
                draw_gantt,
                ROW_IN * len(devices) + 0.9,
            )
        )
    params = len(attempts.distributions)
    rows = -(-min(params, charts.MOST_PARAMS) // 3) or 1
    if params == 4:
        rows = 2
    found += [
        Section(
            "prediction",
            "Asked for and measured",
            "On the line a trial held exactly what was asked for. Far to the right of it memory was leased and not "
            "used; above it, in the red, a trial held more than was asked for.",
            charts.draw_prediction,
            4.6,
        ),
        Section(
            "parameters",
            "Memory against each parameter",
            "What goes with memory most strongly comes first.",
            charts.draw_slices,
            2.6 * rows + 0.4,
        ),
        Section(
            "oom",
            "Where memory ran out",
            "The two parameters that go with memory most strongly. A corner full of crosses is a part of the search "
            "space that the devices cannot hold.",
            charts.draw_oom_map,
            4.6,
        ),
        Section(
            "rate",
            "Trials per hour",
            "How many trials ended in each window of time, and how many attempts ran at once.",
            charts.draw_rate,
            4.0,
        ),
        Section(
            "startup",
            "Start-up tax",
            "What an attempt costs besides its objective: starting its process where none was waiting, handing over, "
            "and until its memory was seen back.",
            charts.draw_startup,
            3.8,
        ),
    ]
    return found
