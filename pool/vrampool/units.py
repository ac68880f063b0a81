"""Bytes as people write them, and back. Bytes are ints everywhere else."""

from __future__ import annotations

import math
import re

from vrampool.errors import RequestError

MIB = 1024**2
GIB = 1024**3

_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024**4,
    "k": 1024,
    "m": MIB,
    "g": GIB,
    "t": 1024**4,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-zA-Z]*)\s*\Z")


def parse_bytes(text: str | int, *, what: str = "size") -> int:
    """Read a positive number of bytes: an int, or text such as "6GiB", "500 MB" or "2g" (binary without a b).

    Raises:
        RequestError: the text has an unknown unit, no number, or a value that is not positive.
    """
    if isinstance(text, bool) or not isinstance(text, (int, str)):
        raise RequestError(f"{what} must be bytes or text like '6GiB', not {text!r}")
    if isinstance(text, int):
        value = text
    else:
        found = _SIZE.match(text)
        factor = _FACTORS.get(found.group(2).lower()) if found else None
        if found is None or factor is None:
            raise RequestError(f"{what} {text!r} is not a size; write bytes or a unit, for example '6GiB' or '500MB'")
        value = int(float(found.group(1)) * factor)
    if value <= 0:
        raise RequestError(f"{what} must be more than 0 bytes, not {text!r}")
    return value


def parse_budget(text: str | int | float, total_bytes: int, *, what: str = "budget") -> int:
    """Read a budget of a device with `total_bytes`: bytes, "20GiB", "85%", or a fraction such as "0.85".

    Raises:
        RequestError: the text cannot be read, or is not within (0, 100 %] of the device.
    """
    if isinstance(text, float) or (isinstance(text, str) and re.fullmatch(r"\s*(0?\.[0-9]+|1\.0*)\s*", text)):
        value = int(float(text) * total_bytes)
    elif isinstance(text, str) and text.strip().endswith("%"):
        try:
            percent = float(text.strip()[:-1])
        except ValueError:
            percent = math.nan
        if not 0 < percent <= 100:
            raise RequestError(f"{what} {text!r} is no percentage of a device; write for example '85%'")
        value = int(percent / 100 * total_bytes)
    else:
        value = parse_bytes(text, what=what)
    if not 0 < value <= total_bytes:
        raise RequestError(f"{what} {text!r} is not within the device's {format_bytes(total_bytes)}")
    return value


def format_bytes(value: int | None) -> str:
    """Write bytes for people: "14.2 GiB", "832 MiB"; "unknown" for None."""
    if value is None:
        return "unknown"
    for unit, size in (("TiB", 1024**4), ("GiB", GIB), ("MiB", MIB), ("KiB", 1024)):
        if abs(value) >= size:
            number = value / size
            return f"{number:.0f} {unit}" if number >= 100 or unit == "KiB" else f"{number:.1f} {unit}"
    return f"{value} B"
