"""What measured trials say of another one without any model: it needs no less than those that are no larger. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vrampool.memory.peaks import PastPeak

#: By parameter: 1 where memory was seen to grow with it, -1: to shrink, 0: not to follow it; None: not known.
Directions = Mapping[str, int | None]


def largest_of_less(params: Mapping[str, Any], peaks: Iterable[PastPeak], directions: Directions) -> PastPeak | None:
    """Return the trial with the largest measured peak among those that cannot have needed more than `params`."""
    found: PastPeak | None = None
    for peak in peaks:
        larger = found is None or peak.at_least_bytes > found.at_least_bytes
        if larger and peak.params and needs_no_less(params, peak.params, directions):
            found = peak
    return found


def needs_no_less(params: Mapping[str, Any], other: Mapping[str, Any], directions: Directions) -> bool:
    """Return whether a trial with `params` needs at least what one with `other` does.

    That is when each parameter is the same, or differs in the direction in which memory was seen to grow, or was seen
    not to matter. Where nothing is known of a parameter only the same value will do.
    """
    for name in params.keys() | other.keys():
        direction = directions.get(name)
        if direction == 0:
            continue
        if name not in params or name not in other:
            return False
        mine, theirs = params[name], other[name]
        if mine == theirs and type(mine) is type(theirs):
            continue
        if not direction or not _are_numbers(mine, theirs) or (mine - theirs) * direction < 0:
            return False
    return True


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
