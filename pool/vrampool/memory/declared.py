"""What a submission says of its memory: nothing, a size, bounds, or a function of the parameters. Pure.

It is kept in the submission as JSON: "auto", bytes, ``{"least": bytes, "most": bytes}``, or ``{"function": {...}}``
with what `vrampool.objectives.resolve` says of how that function travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vrampool.errors import RequestError
from vrampool.units import format_bytes, parse_bytes

AUTO = "auto"


@dataclass(frozen=True)
class Declared:
    """A submission's word on its memory. Nothing set: the pool measures it."""

    exact_bytes: int | None = None
    least_bytes: int | None = None  #: no trial asks for less,
    most_bytes: int | None = None  #: and none for more
    function: Mapping[str, Any] | None = None  #: how the function travels (`ObjectiveRef`)

    @property
    def is_learned(self) -> bool:
        """True where requests follow from what is measured, within bounds or without."""
        return self.exact_bytes is None and self.function is None

    def to_json(self) -> Any:
        """Return it as it is kept in the submission."""
        if self.exact_bytes is not None:
            return self.exact_bytes
        if self.function is not None:
            return {"function": dict(self.function)}
        if self.least_bytes is None and self.most_bytes is None:
            return AUTO
        return {"least": self.least_bytes, "most": self.most_bytes}

    def __str__(self) -> str:
        if self.exact_bytes is not None:
            return format_bytes(self.exact_bytes)
        if self.function is not None:
            return f"what {self.function.get('target')} says"
        if self.least_bytes is None and self.most_bytes is None:
            return "what was measured of it so far"
        least = "nothing" if self.least_bytes is None else format_bytes(self.least_bytes)
        most = "all a device has" if self.most_bytes is None else format_bytes(self.most_bytes)
        return f"what was measured of it so far, between {least} and {most}"


def parse_vram(value: Any) -> int | None:
    """Read a size or "auto": None for "auto", else bytes.

    Raises:
        RequestError: it is neither "auto" nor a size.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() == AUTO):
        return None
    try:
        return parse_bytes(value, what="vram")
    except RequestError as error:
        raise RequestError(f"{error}; or 'auto', and the pool measures it") from None


def read_vram(value: Any) -> Declared:
    """Read what a submission declares, as its user writes it or as the submission keeps it.

    Args:
        value: "auto", bytes, text such as "6GiB"; a pair of them for bounds, with None or "auto" for an open end.

    Raises:
        RequestError: it is none of these, or the lower bound is above the upper one.
    """
    if isinstance(value, Mapping):
        if "function" in value:
            return Declared(function=value["function"])
        value = (value.get("least"), value.get("most"))
    if not isinstance(value, (tuple, list)):
        return Declared(exact_bytes=parse_vram(value))
    if len(value) != 2:
        raise RequestError(f"vram={value!r}: bounds are a pair, for example ('2GiB', '20GiB')")
    least, most = (parse_vram(bound) for bound in value)
    if least is not None and most is not None and least > most:
        raise RequestError(f"vram={value!r}: the lower bound comes first, for example ('2GiB', '20GiB')")
    return Declared(least_bytes=least, most_bytes=most)
