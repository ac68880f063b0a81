"""An attempt in one paragraph: what it asked for, got and held, what failed, and who else held the device. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vrampool.units import format_bytes
from vrampool_worker.attempts import Attempt

if TYPE_CHECKING:
    from vrampool_worker.endings import Place

_LIMIT = 1_600
#: Neighbours that are named; of more the number is enough.
_NAMED = 6


def tell_story(attempt: Attempt, place: Place, peak_bytes: int | None, asked_bytes: int | None, judgement: str) -> str:
    """Return the paragraph.

    Args:
        attempt: The attempt; its processes are gone.
        place: Where it ran.
        peak_bytes: The most it held on the device.
        asked_bytes: The allocation that failed.
        judgement: Whose fault that was, and why; empty when nothing failed for want of memory.
    """
    parts = [
        _asked(attempt, place),
        _held_to(attempt, place),
        _held(attempt, peak_bytes, asked_bytes),
        _counts(attempt),
        _surroundings(attempt, place),
    ]
    if judgement:
        parts.append(f"Verdict: {judgement}.")
    return " ".join(part for part in parts if part)[:_LIMIT]


def _asked(attempt: Attempt, place: Place) -> str:
    request_bytes = attempt.ticket.vram_bytes
    wish = "a device of its own" if request_bytes is None else format_bytes(request_bytes)
    why = f" ({attempt.request_reason})" if attempt.request_reason else ""
    where = f"{place.device_label or place.device}, whose budget is {format_bytes(place.budget_bytes)}"
    return f"It asked for {wish}{why} and had a lease of {format_bytes(attempt.lease_bytes)} on {where}."


def _held_to(attempt: Attempt, place: Place) -> str:
    parts = []
    if attempt.shrunk_from_bytes is not None:
        before, after = format_bytes(attempt.shrunk_from_bytes), format_bytes(attempt.lease_at_end_bytes)
        parts.append(f"While it ran its lease was made smaller, from {before} to {after}.")
    if attempt.cap_bytes is None:
        return " ".join([*parts, "Nothing but the readings held it to that."])
    cap = format_bytes(attempt.cap_bytes)
    if place.device_kind == "cpu":
        parts.append(f"Its cap was {cap} for each of its processes.")
    elif place.overhead_bytes:
        beside = format_bytes(place.overhead_bytes)
        parts.append(f"Its cap was {cap} for torch's allocator, with {beside} beside it for the driver.")
    else:
        parts.append(f"Its cap was {cap} for torch's allocator.")
    return " ".join(parts)


def _held(attempt: Attempt, peak_bytes: int | None, asked_bytes: int | None) -> str:
    held = "What it held is not known" if not peak_bytes else f"It held at most {format_bytes(peak_bytes)}"
    if asked_bytes:
        held += f", and then asked for {format_bytes(asked_bytes)} more"
    if attempt.refused_growth:
        held += f"; a larger lease was not to be had: {attempt.refused_growth}"
    return f"{held}."


def _counts(attempt: Attempt) -> str:
    sample = attempt.sample
    parts = []
    if sample.num_ooms:
        failed = "1 allocation failed" if sample.num_ooms == 1 else f"{sample.num_ooms} allocations failed"
        handled = f", {sample.num_ooms_handled} of them caught on purpose" if sample.num_ooms_handled else ""
        below = 0 if sample.num_ooms_raised is None else max(0, sample.num_ooms - sample.num_ooms_raised)
        below_words = f", {below} of them in a library that then did with less" if below else ""
        parts.append(f"{failed}{handled}{below_words}.")
    if sample.num_alloc_retries:
        times = "once" if sample.num_alloc_retries == 1 else f"{sample.num_alloc_retries} times"
        parts.append(f"Its allocator gave back its cache and tried again {times}.")
    return " ".join(parts)


def _surroundings(attempt: Attempt, place: Place) -> str:
    free_bytes = place.free_bytes if attempt.scene is None else attempt.scene.free_bytes
    others = () if attempt.scene is None else attempt.scene.others
    free = "" if free_bytes is None else f"{format_bytes(free_bytes)} of the device were free at its end, and "
    if not others:
        text = f"{free}nobody else held any of it"
    else:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        text = f"{free}others held it too: {', '.join(others[:_NAMED])}{more}"
    return f"{text[0].upper()}{text[1:]}."
