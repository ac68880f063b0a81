"""Frames of a child, checked and turned into events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vrampool.errors import MessageError
from vrampool.messages import MemorySample, Outcome
from vrampool_worker.children.events import Event, EventKind


def to_event(frame: dict[str, Any] | bytes) -> Event:
    """Return what a frame says. Its data hold what that kind of frame must have, and nothing else.

    Raises:
        MessageError, KeyError, TypeError, ValueError: it is no frame of a child.
    """
    if isinstance(frame, bytes):
        raise MessageError("a raw frame")
    kind = EventKind(frame["t"])
    check = _CHECKS.get(kind)
    if check is None:
        raise MessageError(f"a frame of kind {kind!r}")
    return Event(kind, check(frame))


def _started(frame: dict[str, Any]) -> dict[str, Any]:
    cap_bytes = frame["cap_bytes"]
    return {"cap_bytes": None if cap_bytes is None else int(cap_bytes), "cap_source": str(frame["cap_source"])}


def _recapped(frame: dict[str, Any]) -> dict[str, Any]:
    held_bytes = frame["held_bytes"]
    amounts = {name: int(frame[name]) for name in ("asked_bytes", "cap_bytes", "freed_bytes")}
    return {
        **amounts,
        "held_bytes": None if held_bytes is None else int(held_bytes),
        "enforced": bool(frame["enforced"]),
    }


_CHECKS: dict[EventKind, Callable[[dict[str, Any]], dict[str, Any]]] = {
    EventKind.IMPORTING: lambda frame: {"module": str(frame["module"])[:200], "pid": int(frame["pid"])},
    EventKind.READY: lambda frame: {"pid": int(frame["pid"]), "preload_s": float(frame["preload_s"])},
    EventKind.STARTED: _started,
    EventKind.CALL: lambda frame: {"id": int(frame["id"]), "name": str(frame["name"]), "args": dict(frame["args"])},
    EventKind.SAMPLE: lambda frame: MemorySample.from_json(frame).to_json(),
    EventKind.STEP: lambda frame: {"steps": int(frame["steps"])},
    EventKind.HINT: lambda frame: {"text": str(frame["text"])},
    EventKind.RECAPPED: _recapped,
    EventKind.GROW: lambda frame: {name: int(frame[name]) for name in ("held_bytes", "cap_bytes")},
    EventKind.OUTCOME: lambda frame: Outcome.from_json(frame).to_json(),
}
