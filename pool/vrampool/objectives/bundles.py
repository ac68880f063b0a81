"""Bundles of objectives that no other process could import, and whom to blame when one cannot be made."""

from __future__ import annotations

import functools
import pickle
import types
from collections import ChainMap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle

from vrampool.errors import ObjectiveError
from vrampool.objectives.source_lines import SourceLines
from vrampool.units import format_bytes


def dump(objective: Any, name: str, limit_bytes: int) -> bytes:
    """Pickle an objective by value: its code, and what it refers to of the module it was typed into.

    Raises:
        ObjectiveError: something it refers to cannot be pickled, or all of it is over the limit; the text names the
            variable.
    """
    sink, lines = _Sink(limit_bytes), SourceLines()
    error = _write(objective, sink, lines)
    if error is not None:
        label, cause = _culprit(objective, set()) or ("", error)
        what = f"refers to {label!r}, which cannot be sent to another process" if label else "cannot be bundled"
        raise ObjectiveError(f"objective {name} {what}: {cause}. Make it inside the objective instead") from error
    if sink.size_bytes > limit_bytes:
        label, size_bytes = _biggest(objective, set())
        share = f"; the largest thing it refers to is {label!r} with {format_bytes(size_bytes)}" if label else ""
        raise ObjectiveError(
            f"objective {name} takes {format_bytes(sink.size_bytes)} bundled, over the limit of "
            f"{format_bytes(limit_bytes)}{share}. Load data inside the objective, or raise bundle_bytes"
        )
    # Behind the pickle's end: `loading.unpack` finds the lines there, and an older worker passes over them.
    body, tail = sink.content(), lines.pack()
    return body + tail if len(body) + len(tail) <= limit_bytes else body


class _Sink:
    """A file that keeps up to its limit and only counts beyond it: a captured data set is measured, not copied."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self.size_bytes = 0

    def write(self, data: Any) -> int:
        length = memoryview(data).nbytes
        self.size_bytes += length
        if self.size_bytes <= self._limit_bytes:
            self._parts.append(bytes(data))
        return length

    def content(self) -> bytes:
        return b"".join(self._parts)


def _write(value: Any, sink: _Sink, lines: SourceLines | None = None) -> Exception | None:
    pickler: Any = cloudpickle.Pickler  # untyped
    if lines is not None:
        table = pickler.dispatch_table
        own = {types.CodeType: lines.reducer(table[types.CodeType])}
        pickler = type("_Pickler", (pickler,), {"dispatch_table": ChainMap(own, table)})
    try:
        pickler(sink, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception as error:  # TypeError, PicklingError, RecursionError, or whatever a __reduce__ raises
        return error
    return None


@dataclass(frozen=True)
class _Capture:
    """Something an object refers to by a name of the user's."""

    label: str
    value: Any


def _captures(value: Any) -> Iterator[_Capture]:
    """Yield what would travel with an object that is pickled by value."""
    if isinstance(value, functools.partial):
        yield _Capture(getattr(value.func, "__name__", "func"), value.func)
        yield from (_Capture(f"argument {index}", item) for index, item in enumerate(value.args))
        yield from (_Capture(key, item) for key, item in value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield _Capture("self", value.__self__)
        yield from _captures(value.__func__)
    elif isinstance(value, types.FunctionType):
        for cell_name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield _Capture(cell_name, cell.cell_contents)
            except ValueError:  # a cell that is still empty
                continue
        names = dict.fromkeys(_names_used(value.__code__))
        yield from (_Capture(key, value.__globals__[key]) for key in names if key in value.__globals__)
        yield from (_Capture("a default value", item) for item in value.__defaults__ or ())
        yield from (_Capture(key, item) for key, item in (value.__kwdefaults__ or {}).items())
    elif isinstance(value, type):
        yield from (_Capture(key, item) for key, item in vars(value).items() if not key.startswith("__"))
    elif hasattr(value, "__dict__") and not isinstance(value, types.ModuleType):
        yield from (_Capture(f"self.{key}", item) for key, item in vars(value).items())
        yield _Capture(type(value).__name__, type(value))


def _names_used(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_used(constant)


def _opens(value: Any) -> bool:
    """Return whether looking inside names a better culprit than the object itself."""
    return isinstance(value, (types.FunctionType, types.MethodType, functools.partial, type)) or callable(value)


def _culprit(value: Any, seen: set[int]) -> tuple[str, Exception] | None:
    """Return the innermost named thing that cannot be pickled, and why."""
    seen.add(id(value))
    for capture in _captures(value):
        if id(capture.value) in seen:
            continue
        error = _write(capture.value, _Sink())
        if error is not None:
            inner = _culprit(capture.value, seen) if _opens(capture.value) else None
            return inner or (capture.label, error)
    return None


def _biggest(value: Any, seen: set[int]) -> tuple[str, int]:
    """Return the innermost named thing that takes most of the bundle, and its size."""
    seen.add(id(value))
    label, size_bytes, holder = "", 0, None
    for capture in _captures(value):
        if id(capture.value) in seen:
            continue
        sink = _Sink()
        if _write(capture.value, sink) is None and sink.size_bytes > size_bytes:
            label, size_bytes, holder = capture.label, sink.size_bytes, capture.value
    if holder is not None and _opens(holder):
        inner, inner_bytes = _biggest(holder, seen)
        if inner and inner_bytes > size_bytes / 2:
            return inner, inner_bytes
    return label, size_bytes
