"""How much memory a trial is started with: what its submission declares, or what is known of the study. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from vrampool.errors import RequestError
from vrampool.memory.declared import AUTO as AUTO
from vrampool.memory.declared import Declared, read_vram
from vrampool.memory.declared import parse_vram as parse_vram
from vrampool.memory.dominance import Directions, largest_of_less
from vrampool.memory.peaks import PastPeak as PastPeak
from vrampool.units import MIB, format_bytes

#: With fewer peaks than this the next trial may well be larger than all of them.
FEW_PEAKS = 5
_FEW_FACTOR = 1.5
_FACTOR = 1.25
#: A peak at which a trial ended early says this much about where it was going.
_CENSORED_FACTOR = 1.5
#: Of a trial of which little is known: what is lent to it beyond its request, where nobody else wants it.
UNSURE_FACTOR = 4
#: What takes more than this share of the largest device leaves next to nothing beside it.
ALMOST_ALL = 0.75
#: A margin may take so much of the largest device; more of it is lent, where nobody else wants it.
_MARGIN_SHARE = 0.1
#: Allocators round up, and libraries load more kernels later: never plan closer than this.
_LEAST_MARGIN_BYTES = 256 * MIB
#: What is asked beyond a peak that trials with no larger parameters have reached, and beyond one that did not suffice.
_MEASURED_MARGIN_BYTES = 64 * MIB
_NOT_ENOUGH_FACTOR = 1.2


@dataclass(frozen=True)
class Request:
    """How much memory a trial asks for."""

    request_bytes: int | None  #: None: exclusive, a whole device
    reason: str  #: for people
    predicted_bytes: int | None = None  #: peak that is expected, without margin; None: it was not predicted
    wish_bytes: int | None = None  #: what nearly all such trials would do with, where that is more; None: it is not

    def to_json(self, **more: Any) -> dict[str, Any]:
        """Return it as it is kept on the trial (`vrampool:request`)."""
        kept = {"predicted": self.predicted_bytes, "wish": self.wish_bytes}
        known = {name: value for name, value in kept.items() if value is not None}
        return {"bytes": self.request_bytes, "reason": self.reason, **known, **more}


class Prediction(Protocol):
    """What a model says of parameters. Bytes, the process's overhead included."""

    @property
    def middle_bytes(self) -> int: ...
    @property
    def upper_bytes(self) -> int: ...
    @property
    def cautious_bytes(self) -> int: ...
    @property
    def outside(self) -> tuple[str, ...]: ...
    @property
    def margin(self) -> float: ...


class Model(Protocol):
    """What has been learned of a study's peaks (`vrampool.memory.learning.learned.Learned`)."""

    @property
    def directions(self) -> Directions: ...
    @property
    def drivers(self) -> list[str]: ...
    @property
    def trials(self) -> int: ...
    def predict(self, params: Mapping[str, Any], overhead_bytes: int | None = None) -> Prediction: ...


def check_fits(request_bytes: int | None, largest_bytes: int | None) -> None:
    """Refuse a declared request that no device can hold.

    Args:
        request_bytes: None: exclusive, which fits everywhere.
        largest_bytes: Largest budget of the pool; None: no worker was seen yet, so nothing can be said.

    Raises:
        RequestError: it is larger than every device.
    """
    if request_bytes is not None and largest_bytes is not None and request_bytes > largest_bytes:
        raise RequestError(
            f"vram asks for {format_bytes(request_bytes)}, and the largest budget of the pool is "
            f"{format_bytes(largest_bytes)}; ask for less, or add a larger device"
        )


def next_request(
    spec_vram: Any,
    past: Sequence[PastPeak | tuple[int, bool]],
    overhead_bytes: int | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    distributions: Mapping[str, Any] | None = None,
    model: Model | None = None,
    largest_bytes: int | None = None,
) -> Request:
    """Return the request of a study's next trial.

    Args:
        spec_vram: What the submission declares: "auto", bytes, text such as "6GiB", or bounds for the prediction.
        past: Peaks of the study so far.
        overhead_bytes: What a process holds beyond what its parameters decide; the margin is not taken of it.
        params: The planned parameters.
        distributions: Their distributions; not needed so far.
        model: What was learned from the peaks; None: every trial is taken for as large as the largest so far.
        largest_bytes: Budget of the pool's largest device: doubt alone is not to take all of it; None: not known.

    Raises:
        RequestError: `spec_vram` cannot be read.
    """
    declared = read_vram(spec_vram)
    if declared.exact_bytes is not None:
        return Request(declared.exact_bytes, f"{format_bytes(declared.exact_bytes)} declared by the submission")
    peaks = [PastPeak(*item) for item in past]
    if model is None:
        found = _largest_so_far(peaks, overhead_bytes)
        if found.request_bytes is None and declared.most_bytes is not None:
            words = "as much as the submission allows; its memory is measured meanwhile"
            found = Request(declared.most_bytes, f"{format_bytes(declared.most_bytes)}, {words}")
    else:
        found = _predicted(model, params or {}, peaks, overhead_bytes, largest_bytes)
    return _within(found, declared)


def beside_others(asked_bytes: int, predicted_bytes: int, largest_bytes: int | None) -> int:
    """Return what to ask for where the margin would keep others away from the largest device.

    A margin that takes a good part of a device leaves no room for another trial. Where it is a matter of doubt more
    than of need, being tried again costs less time than running without company: so the margin is at most a tenth of
    the device, or a quarter of what is predicted where that is more. What is predicted to need almost all of the device
    keeps its margin: it would be alone anyway.
    """
    if largest_bytes is None or predicted_bytes > ALMOST_ALL * largest_bytes:
        return asked_bytes
    margin_bytes = max(int(predicted_bytes * (_FACTOR - 1)), int(_MARGIN_SHARE * largest_bytes))
    return min(asked_bytes, _round(predicted_bytes + margin_bytes))


def _predicted(
    model: Model,
    params: Mapping[str, Any],
    peaks: Iterable[PastPeak],
    overhead_bytes: int | None,
    largest_bytes: int | None,
) -> Request:
    prediction = model.predict(params, overhead_bytes)
    drivers = ", ".join(model.drivers[:4])
    reason = f"predicted {format_bytes(prediction.middle_bytes)}" + (f" from {drivers}" if drivers else "")
    reason += f"; {model.trials} trials; margin {round(prediction.margin * 100)} %"
    if prediction.outside:
        reason += f"; {', '.join(prediction.outside)} beyond anything seen, so with caution"
    asked_bytes = beside_others(prediction.upper_bytes, prediction.middle_bytes, largest_bytes)
    if asked_bytes < prediction.upper_bytes:
        reason += f"; kept to {format_bytes(asked_bytes)}, for more would keep others from the device"
    measured = largest_of_less(params, peaks, model.directions)
    if measured is not None:
        factor = _NOT_ENOUGH_FACTOR if measured.censored and not measured.finished else 1.0
        floor_bytes = _round(int(measured.at_least_bytes * factor) + _MEASURED_MARGIN_BYTES)
        if floor_bytes > asked_bytes:
            asked_bytes = floor_bytes
            reason += f"; raised, for a trial that was no larger needed {format_bytes(measured.at_least_bytes)}"
    wish_bytes = prediction.cautious_bytes if prediction.cautious_bytes > asked_bytes else None
    return Request(asked_bytes, reason, prediction.middle_bytes, wish_bytes)


def _within(found: Request, declared: Declared) -> Request:
    """Keep a request within the bounds that the submission gives."""
    asked_bytes = found.request_bytes
    least, most = declared.least_bytes, declared.most_bytes
    if asked_bytes is None:
        return found
    if most is not None and asked_bytes > most:
        words = f"{found.reason}; kept to the submission's bound of {format_bytes(most)}"
        return Request(most, words, found.predicted_bytes)
    if least is not None and asked_bytes < least:
        words = f"{found.reason}; raised to the submission's bound of {format_bytes(least)}"
        return Request(least, words, found.predicted_bytes)
    if most is not None and found.wish_bytes is not None:
        return replace(found, wish_bytes=min(found.wish_bytes, most))
    return found


def _largest_so_far(peaks: Sequence[PastPeak], overhead_bytes: int | None) -> Request:
    seen = [peak.peak_bytes for peak in peaks if not peak.censored]
    if not seen:
        # A trial that failed at its first line held next to nothing; that says nothing of the next one.
        known = "only of trials that ended early" if peaks else "nothing"
        return Request(None, f"{known} is known of this study's memory yet, so this trial starts alone on a device")
    largest_bytes = max(seen)
    beyond_bytes = max((peak.peak_bytes for peak in peaks if peak.censored), default=0)
    if beyond_bytes > largest_bytes:
        target_bytes = _above(beyond_bytes, overhead_bytes, _CENSORED_FACTOR)
        reached = f"{format_bytes(beyond_bytes)} reached by a trial that ended early"
        words = f"{reached}, and {_more(beyond_bytes, overhead_bytes, _CENSORED_FACTOR)}"
        return Request(target_bytes, words, wish_bytes=UNSURE_FACTOR * target_bytes)
    few = len(seen) < FEW_PEAKS
    factor = _FEW_FACTOR if few else _FACTOR
    counted = "1 trial" if len(seen) == 1 else f"{len(seen)} trials"
    asked_bytes = _above(largest_bytes, overhead_bytes, factor)
    more = _more(largest_bytes, overhead_bytes, factor)
    reason = f"the largest peak of {counted}, {format_bytes(largest_bytes)}, and {more}"
    return Request(asked_bytes, reason, wish_bytes=UNSURE_FACTOR * asked_bytes if few else None)


def _more(peak_bytes: int, overhead_bytes: int | None, factor: float) -> str:
    """Say what was added to a peak: a part of it, or the least that ever is."""
    own_bytes = peak_bytes - min(overhead_bytes or 0, peak_bytes)
    if int(own_bytes * (factor - 1)) < _LEAST_MARGIN_BYTES:
        return f"{format_bytes(_LEAST_MARGIN_BYTES)} more, the least margin"
    beside = " of what is beyond a process's own" if own_bytes < peak_bytes else ""
    return f"{round((factor - 1) * 100)} %{beside} more"


def lease_after_first_report(peak_bytes: int) -> int:
    """Return the lease of a trial that ran alone and has shown its peak: the peak plus a margin."""
    return _above(peak_bytes, None, _FACTOR)


def _above(peak_bytes: int, overhead_bytes: int | None, factor: float) -> int:
    fixed_bytes = min(overhead_bytes or 0, peak_bytes)
    scaled_bytes = fixed_bytes + int((peak_bytes - fixed_bytes) * factor)
    return _round(max(scaled_bytes, peak_bytes + _LEAST_MARGIN_BYTES))


def _round(number: int) -> int:
    return -(-number // MIB) * MIB
