"""How much memory a trial is started with: what its submission declares, or what is known of the study. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vrampool.errors import RequestError
from vrampool.units import MIB, format_bytes, parse_bytes

AUTO = "auto"
#: With fewer peaks than this the next trial may well be larger than all of them.
FEW_PEAKS = 5
_FEW_FACTOR = 1.5
_FACTOR = 1.25
#: A peak at which a trial ended early says this much about where it was going.
_CENSORED_FACTOR = 1.5
#: Allocators round up, and libraries load more kernels later: never plan closer than this.
_LEAST_MARGIN_BYTES = 256 * MIB


class PastPeak(NamedTuple):
    """What one earlier or running trial of the study needed, as its device saw it."""

    peak_bytes: int
    #: It ended early (failed, killed, out of memory) or retried allocations: a lower bound only. A running trial
    #: that has reported has been through a whole round, so its peak counts as seen.
    censored: bool = False
    params: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Request:
    """How much memory a trial asks for."""

    request_bytes: int | None  #: None: exclusive, a whole device
    reason: str  #: for people


def parse_vram(value: Any) -> int | None:
    """Read what a submission declares: None for "auto", else bytes.

    Raises:
        RequestError: it is neither "auto" nor a size.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() == AUTO):
        return None
    try:
        return parse_bytes(value, what="vram")
    except RequestError as error:
        raise RequestError(f"{error}; or 'auto', and the pool measures it") from None


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
) -> Request:
    """Return the request of a study's next trial.

    Args:
        spec_vram: What the submission declares: "auto", bytes, or text such as "6GiB".
        past: Peaks of the study so far.
        overhead_bytes: What a process holds beyond what its parameters decide; the margin is not taken of it.
        params: The planned parameters. Every trial of a study is taken for alike so far; they are given so that
            requests can be learned from them without any caller changing.
        distributions: Their distributions.

    Raises:
        RequestError: `spec_vram` is no size.
    """
    declared_bytes = parse_vram(spec_vram)
    if declared_bytes is not None:
        return Request(declared_bytes, f"{format_bytes(declared_bytes)} declared by the submission")
    peaks = [PastPeak(*item) for item in past]
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
        return Request(target_bytes, f"{reached}, and {_percent(_CENSORED_FACTOR)} more")
    factor = _FEW_FACTOR if len(seen) < FEW_PEAKS else _FACTOR
    counted = "1 trial" if len(seen) == 1 else f"{len(seen)} trials"
    reason = f"the largest peak of {counted}, {format_bytes(largest_bytes)}, and {_percent(factor)} more"
    return Request(_above(largest_bytes, overhead_bytes, factor), reason)


def _percent(factor: float) -> str:
    return f"{round((factor - 1) * 100)} %"


def lease_after_first_report(peak_bytes: int) -> int:
    """Return the lease of a trial that ran alone and has shown its peak: the peak plus a margin."""
    return _above(peak_bytes, None, _FACTOR)


def _above(peak_bytes: int, overhead_bytes: int | None, factor: float) -> int:
    fixed_bytes = min(overhead_bytes or 0, peak_bytes)
    scaled_bytes = fixed_bytes + int((peak_bytes - fixed_bytes) * factor)
    bytes_ = max(scaled_bytes, peak_bytes + _LEAST_MARGIN_BYTES)
    return -(-bytes_ // MIB) * MIB
