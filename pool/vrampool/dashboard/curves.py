"""Samples of a device as the page draws them: rows of whole windows, thinned to what a screen can show. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vrampool.units import MIB

#: Length of each window in seconds, and the width of one of its rows: 600 rows, more than a chart has pixels to tell.
WINDOWS: dict[int, float] = {300: 0.5, 1800: 3.0}
_ROWS = 600
_DEVICE_FIELDS = ("used_bytes", "driver_reserved_bytes", "strangers_bytes")
_TRIAL_FIELDS = ("lease_bytes", "measured_bytes", "torch_reserved_bytes", "allocated_bytes", "cap_bytes")

Trial = tuple[str, int]  # study name, trial number
#: t, used, driver, others, utilisation, {trial: [lease, measured, torch reserved, allocated, cap]}; MiB, None: unknown
Row = list[Any]


class Curve:
    """One device over time, in one row for each step of every window. A row keeps the most of each figure in it."""

    def __init__(self) -> None:
        self._rings: dict[int, deque[Row]] = {window_s: deque(maxlen=_ROWS + 1) for window_s in WINDOWS}
        self.last_at = 0.0  #: time of the newest sample, seconds since the epoch

    def add(self, sample: Mapping[str, Any]) -> Row | None:
        """Take in a sample as `History` keeps it; return it as a row, or None when it is older than what is here."""
        row = _row_of(sample)
        if row is None or row[0] <= self.last_at:
            return None
        self.last_at = row[0]
        for window_s, step_s in WINDOWS.items():
            ring = self._rings[window_s]
            at_s = row[0] // step_s * step_s
            if ring and ring[-1][0] == at_s:
                _merge(ring[-1], row)
            else:
                ring.append([at_s, *row[1:5], {key: list(figures) for key, figures in row[5].items()}])
        return row

    def rows(self, window_s: int) -> list[Row]:
        """Return the rows of a window, oldest first."""
        ring = self._rings[window_s]
        oldest = (ring[-1][0] if ring else 0.0) - window_s
        return [row for row in ring if row[0] >= oldest]

    def __bool__(self) -> bool:
        return self.last_at > 0


def thinned(samples: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield those of many samples, oldest first, that are worth reading: of the past one for each row of its window.

    Half an hour of eight devices is 230 000 figures; most of them would end in a row with five others.
    """
    short_s, long_s = WINDOWS
    newest = samples[-1]["at"] if samples else 0.0
    step_s = WINDOWS[long_s]
    last_step = None
    for sample in samples:
        age_s = newest - sample["at"]
        step = sample["at"] // step_s
        if age_s <= short_s or (age_s <= long_s and step != last_step):
            last_step = step
            yield sample


def message(rows: Iterable[Row]) -> dict[str, Any]:
    """Return rows in the form that travels: study names once, trials as [study's index, number, figures...]."""
    names: dict[str, int] = {}
    packed = []
    for row in rows:
        trials = [[names.setdefault(study, len(names)), number, *row[5][study, number]] for study, number in row[5]]
        packed.append([*row[:5], trials])
    return {"studies": list(names), "rows": packed}


def _row_of(sample: Mapping[str, Any]) -> Row | None:
    at_s = sample.get("at") or sample.get("at_s")  # Redis's clock, if it is there: hosts' clocks differ
    if not isinstance(at_s, (int, float)):
        return None
    trials: dict[Trial, list[float | None]] = {}
    for item in sample.get("trials") or ():
        try:
            trials[str(item["study"]), int(item["number"])] = [_mib(item.get(name)) for name in _TRIAL_FIELDS]
        except (KeyError, TypeError, ValueError):  # written by another version
            continue
    utilisation = sample.get("utilisation")
    share = round(float(utilisation), 3) if isinstance(utilisation, (int, float)) else None
    return [round(float(at_s), 2), *(_mib(sample.get(name)) for name in _DEVICE_FIELDS), share, trials]


def _mib(value: Any) -> float | None:
    return value * 10 // MIB / 10 if isinstance(value, (int, float)) else None


def _merge(into: Row, row: Row) -> None:
    for place in range(1, 5):
        into[place] = _most(into[place], row[place])
    # Whoever left within the step is left out: its place in the stack may be taken by the next one already.
    kept: dict[Trial, list[float | None]] = into[5]
    into[5] = {
        key: [_most(before, now) for before, now in zip(kept[key], figures, strict=True)] if key in kept else figures[:]
        for key, figures in row[5].items()
    }


def _most(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
