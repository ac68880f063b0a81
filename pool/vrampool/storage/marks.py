"""Words this project writes on trials: Optuna user attributes that begin with ``vrampool:``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vrampool.errors import MessageError
from vrampool.messages import WIRE_VERSION, AttemptFacts

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

MARK = "vrampool:mark"  #: a `Mark`; written in the same write that creates the trial
PLAN = "vrampool:plan"  #: {name: [internal representation, distribution as JSON text]}
#: {"bytes": int | null (exclusive), "reason": text, "avoid": device id | absent, "beyond": int | absent}
REQUEST = "vrampool:request"
CLAIM = "vrampool:claim:"  #: followed by the worker's name; seconds since the epoch
ATTEMPT = "vrampool:attempt"  #: `AttemptFacts`, written by the worker just before it tells
LOST = "vrampool:lost"  #: text, written with FAIL by the coordinator when the trial's worker is gone
CANCELLED = "vrampool:cancelled"  #: text, written with FAIL when a trial is ended that nobody had started
OVER_GIB = "vrampool:over_gib"  #: name of the constraint: GiB by which the trial's peak was over the budget
#: Study system attribute, followed by a submission's id: why none of its leases is made smaller any more
KEEP_LEASES = "vrampool:keep_leases:"
#: Where Optuna keeps that constraint: `Trial.set_constraint` writes the same system attribute.
OVER_GIB_ATTR = f"constraints:{OVER_GIB}"


@dataclass(frozen=True)
class Mark:
    """Whose trial it is, and which attempt at what."""

    submission: str
    root: int | None = None  #: number of the first attempt; None: this is it
    retry_of: int | None = None  #: number of the attempt before
    attempt: int = 1
    wire: int = WIRE_VERSION
    point: int | None = None  #: index in the submission's starting points; None: asked from the sampler

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def next(self, number: int) -> Mark:
        """Return the mark of the next attempt after this one, which is trial `number`."""
        root = number if self.root is None else self.root
        return dataclasses.replace(self, root=root, retry_of=number, attempt=self.attempt + 1)


def mark_of(trial: FrozenTrial) -> Mark | None:
    """Return the trial's mark; None when it is not ours."""
    raw = trial.user_attrs.get(MARK)
    if raw is None:
        return None
    try:
        return Mark(
            submission=raw["submission"],
            root=raw.get("root"),
            retry_of=raw.get("retry_of"),
            attempt=raw.get("attempt", 1),
            wire=raw.get("wire", 1),
            point=raw.get("point"),
        )
    except (TypeError, KeyError, AttributeError):  # somebody else's attribute of the same name
        return None


def root_of(trial: FrozenTrial) -> int:
    """Return the number of the trial's first attempt; its own for one that is no retry, or not ours."""
    mark = mark_of(trial)
    return trial.number if mark is None or mark.root is None else mark.root


def attempt_of(trial: FrozenTrial) -> AttemptFacts | None:
    """Return what the worker wrote about the attempt; None before its end, or when it never could."""
    raw = trial.user_attrs.get(ATTEMPT)
    if raw is None:
        return None
    try:
        return AttemptFacts.from_json(raw)
    except MessageError:
        return None


def claimed_by(trial: FrozenTrial) -> str | None:
    """Return the name of the worker that claimed the trial; None: nobody of ours ever ran it."""
    for key, value in trial.user_attrs.items():
        if value is not None and key.startswith(CLAIM):
            return key[len(CLAIM) :]
    return None


def requested_bytes(trial: FrozenTrial) -> int | None:
    """Return the bytes asked for the trial; None: a whole device, or not sized yet."""
    raw = trial.user_attrs.get(REQUEST)
    value = raw.get("bytes") if isinstance(raw, dict) else None
    return value if isinstance(value, int) else None


def wished_bytes(trial: FrozenTrial) -> int | None:
    """Return what may be lent to the trial beyond what it asks for, that included; None: nothing is."""
    raw = trial.user_attrs.get(REQUEST)
    value = raw.get("wish") if isinstance(raw, dict) else None
    return value if isinstance(value, int) else None


def lost_reason(trial: FrozenTrial) -> str | None:
    """Return why the coordinator took the trial for lost; None when it did not."""
    value = trial.user_attrs.get(LOST)
    return None if value is None else str(value)


def cancelled_reason(trial: FrozenTrial) -> str | None:
    """Return why the trial was ended before anybody started it; None when it was not."""
    value = trial.user_attrs.get(CANCELLED)
    return None if value is None else str(value)
