"""The ledger's sentences. They are what `why`, `top` and the page show, so they name amounts and who holds them."""

from __future__ import annotations

from vrampool.units import format_bytes
from vrampool_worker.ledger.earmarks import Earmark


def trials(count: int) -> str:
    """Count trials: "1 trial", "3 trials"."""
    return "1 trial" if count == 1 else f"{count} trials"


def holders(count: int, leased_bytes: int, strangers_bytes: int, unexplained_bytes: int) -> str:
    """Say who holds a device: "2 trials hold 10.1 GiB, other programs 1.2 GiB"; empty when nobody does."""
    parts = []
    if count:
        parts.append(f"{trials(count)} hold{'s' if count == 1 else ''} {format_bytes(leased_bytes)}")
    if strangers_bytes:
        parts.append(f"other programs {'' if count else 'hold '}{format_bytes(strangers_bytes)}")
    if unexplained_bytes:
        parts.append(f"{format_bytes(unexplained_bytes)} just taken, it is not clear by whom")
    return ", ".join(parts)


def room(label: str, free_bytes: int, budget_bytes: int, held_by: str) -> str:
    """Say what is free: "GPU 0 has 9.1 GiB free of its 20.4 GiB (2 trials hold 10.1 GiB)"."""
    free = f"{format_bytes(free_bytes)} free" if free_bytes else "nothing free"
    return f"{label} has {free} of its {format_bytes(budget_bytes)}" + (f" ({held_by})" if held_by else "")


def kept(label: str, earmark: Earmark) -> str:
    """Say for whom a device is kept free: "GPU 1 is earmarked for digits/31, which waits for 14.2 GiB"."""
    return f"{label} is earmarked for {earmark.label}, which waits for {wish(earmark.request_bytes)}"


def wish(request_bytes: int | None) -> str:
    """Name what a trial wants: "6.0 GiB", "a device of its own"."""
    return "a device of its own" if request_bytes is None else format_bytes(request_bytes)


def released(lease_bytes: int, device: str, residue_bytes: int | None, noise_bytes: int, back_s: float) -> str:
    """Say how a lease ended: whether the memory was seen back."""
    gave_back = f"gave back its lease of {format_bytes(lease_bytes)} of {device}"
    if residue_bytes is None:
        return f"{gave_back}; the device does not tell its memory"
    if residue_bytes > noise_bytes:
        return (
            f"{gave_back}; {format_bytes(residue_bytes)} are still in use {back_s:.0f} s later, and counted as others'"
        )
    return f"{gave_back}; the memory was seen back after {back_s:.1f} s"
