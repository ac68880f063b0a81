"""What a probe found: peaks, how many trials go side by side, what does not fit and what to change. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vrampool.probing.corners import NOISE, Corners, Run
from vrampool.probing.space import is_batch
from vrampool.units import MIB, format_bytes

#: The least margin of a learned request; while trials are few the pool asks for more.
_MARGIN = 0.05
_LEAST_MARGIN_BYTES = 64 * MIB


@dataclass(frozen=True)
class Device:
    """A device of the pool, as its worker tells. Bytes."""

    name: str
    kind: str  #: "cuda" or "cpu"
    budget_bytes: int  #: what trials may hold together
    slots: int  #: trials at once, whatever they hold


@dataclass(frozen=True)
class Room:
    """How many trials go side by side on one device."""

    device: str
    budget_bytes: int
    of_largest: int  #: trials as large as the largest that was seen to fit; 0: none fits
    of_typical: int  #: trials as large as a randomly drawn one; the pool runs so many when it has learned
    total_bytes: int  #: what `of_largest` trials hold together


@dataclass(frozen=True)
class Advice:
    """One thing to change."""

    what: str  #: in one sentence
    helper: str = ""  #: of `vrampool.training`; empty: none is needed
    example: str = ""  #: a line of code


@dataclass(frozen=True)
class Findings:
    """All that a probe found."""

    study: str  #: the probe's own
    objective: str
    runs: tuple[Run, ...]  #: dry trials first, then corners
    corners: Corners
    rooms: tuple[Room, ...]
    advice: tuple[Advice, ...]
    notes: tuple[str, ...] = ()
    wall_s: float = 0.0

    @property
    def fits(self) -> bool:
        """Return whether every corner that was run fits."""
        return not any(run.end == "does not fit" for run in self.runs)

    @property
    def conclusive(self) -> bool:
        """Return whether something was measured, and the corner taken for the worst did not fail by its own fault."""
        worst = self.corners.worst
        return self.largest is not None and (worst is None or worst.end != "failed")

    @property
    def largest(self) -> Run | None:
        """Return the run with the largest peak of those that fit."""
        return max((run for run in self.runs if run.fits and run.peak_bytes), key=_peak, default=None)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON types; bytes and seconds."""
        largest = self.largest
        return {
            "study": self.study,
            "objective": self.objective,
            "fits": self.fits,
            "conclusive": self.conclusive,
            "largest_peak_bytes": None if largest is None else largest.peak_bytes,
            "overhead_bytes": None if largest is None else largest.overhead_bytes,
            "runs": [{**dataclasses.asdict(run), "params": dict(run.params)} for run in self.runs],
            "effects": [dataclasses.asdict(effect) for effect in self.corners.effects],
            "bound": None if self.corners.bound is None else dataclasses.asdict(self.corners.bound),
            "untried": self.corners.untried,
            "devices": [dataclasses.asdict(room) for room in self.rooms],
            "advice": [dataclasses.asdict(item) for item in self.advice],
            "notes": list(self.notes),
            "wall_s": round(self.wall_s, 1),
        }


@dataclass
class Found:
    """What a probe collects on its way."""

    study: str
    objective: str
    dry: list[Run] = field(default_factory=list)
    corners: Corners = field(default_factory=Corners)

    def conclude(self, devices: Sequence[Device], wall_s: float) -> Findings:
        """Return what follows from it."""
        runs = (*self.dry, *self.corners.runs)
        fitted = [run for run in runs if run.fits and run.peak_bytes]
        typical = [run for run in self.dry if run.fits and run.peak_bytes] or fitted
        rooms = tuple(_room(device, fitted, typical) for device in devices)
        advice = tuple(advise(self.corners, devices) or _elsewhere(runs))
        return Findings(
            self.study, self.objective, runs, self.corners, rooms, advice, tuple(_notes(runs, self.corners)), wall_s
        )


def _room(device: Device, fitted: Sequence[Run], typical: Sequence[Run]) -> Room:
    if not fitted:
        return Room(device.name, device.budget_bytes, 0, 0, 0)
    largest = max(map(_peak, fitted))
    middle = sorted(map(_peak, typical))[len(typical) // 2]
    count = _how_many(device, largest)
    return Room(device.name, device.budget_bytes, count, _how_many(device, middle), count * largest)


def _how_many(device: Device, peak_bytes: int) -> int:
    """Return how many such trials fit, each with a learned request's margin; one alone may have it all."""
    if peak_bytes > device.budget_bytes:
        return 0
    each_bytes = peak_bytes + max(int(_MARGIN * peak_bytes), _LEAST_MARGIN_BYTES)
    return max(1, min(device.slots, device.budget_bytes // each_bytes))


def advise(corners: Corners, devices: Sequence[Device]) -> list[Advice]:
    """Return what to change so that everything fits; nothing where it does."""
    worst = corners.worst
    if worst is None or worst.end != "does not fit":
        return []
    on_gpu = any(device.kind == "cuda" for device in devices)
    advice: list[Advice] = []
    bound = corners.bound
    if bound is not None and is_batch(bound.name):
        advice.append(_accumulate(bound.name, bound.fits))
    if on_gpu:
        advice.append(
            Advice(
                "mixed precision: activations take about half",
                "training.mixed_precision",
                'precision = training.mixed_precision("auto"); with precision.autocast(): ...',
            )
        )
    if bound is not None:
        words = f"{bound.name}: {bound.fits} fits with all else at its largest, {bound.too_large} does not"
        advice.append(Advice(f"{'or ' if advice else ''}search less of it. {words}"))
    elif (smallest := corners.smallest) is not None and smallest.fits:
        batches = [name for name in smallest.params if is_batch(name)]
        if batches:
            advice.insert(0, _accumulate(batches[0], smallest.params[batches[0]]))
        advice.append(Advice("no parameter alone makes the largest corner fit: search less of several at once"))
    else:
        advice.append(
            Advice(
                "the smallest corner does not fit either: offload what is frozen to host memory and disk, or add a "
                "larger device",
                "training.load_offloaded",
                "model = training.load_offloaded(lambda: make_model())",
            )
        )
    return advice


def _elsewhere(runs: Sequence[Run]) -> list[Advice]:
    """Return advice where the corner taken for the worst fits, and another trial did not."""
    found = next((run for run in runs if run.end == "does not fit"), None)
    if found is None:
        return []
    return [
        Advice(
            f"{describe(found.params)} does not fit, though the corner with the largest sizes does: search less around "
            "it, or run the study as it is: the pool tells the sampler what cannot fit"
        )
    ]


def _accumulate(name: str, fits: Any) -> Advice:
    most = max(1, int(fits))
    return Advice(
        f"accumulate: search {name} as before, with no more than {most} samples in memory at a time",
        "training.effective_batch, training.GradientAccumulator",
        f'batch = training.effective_batch(trial, sizes, max_physical={most}, name="{name}")',
    )


def _notes(runs: Sequence[Run], corners: Corners) -> list[str]:
    notes = []
    if corners.worst is not None and corners.worst.end == "failed":
        notes.append("the largest corner failed by itself, so what it needs is not known")
    if corners.untried:
        notes.append(f"not tried, for no run was left: {', '.join(corners.untried)} (--runs allows more)")
    if any(run.end == "not whole" for run in runs):
        notes.append(
            "a peak with > was still growing, or its trial had not reported: it is a lower bound; an objective that "
            "reports after each evaluation is measured whole"
        )
    failed = [run for run in runs if run.end == "failed"]
    if failed:
        notes.append(f"{len(failed)} of {len(runs)} runs failed, the last with: {failed[-1].note}")
    idle = [effect.name for effect in corners.effects if effect.factor and abs(effect.factor - 1) < NOISE]
    if idle:
        notes.append(f"memory does not follow {', '.join(idle)}")
    return notes


def describe(params: Mapping[str, Any]) -> str:
    """Return parameters as a table shows them."""
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in params.items()
    )


def one_line(findings: Findings) -> str:
    """Return the whole of it in one sentence or two."""
    largest = findings.largest
    if largest is None:
        return "the probe measured nothing"
    peak = format_bytes(largest.peak_bytes)
    if findings.fits:
        return f"the probe's largest trial held {peak}; all of its {len(findings.runs)} runs fit"
    # A drawn trial may be too large as well; the advice is about the worst corner.
    tried = [findings.corners.worst, *findings.runs]
    worst = next(run for run in tried if run is not None and run.end == "does not fit")
    words = "; ".join(item.what for item in findings.advice)
    return f"{describe(worst.params)} fits no device of the pool; the largest that fits held {peak}. To change: {words}"


def _peak(run: Run) -> int:
    return run.peak_bytes or 0
