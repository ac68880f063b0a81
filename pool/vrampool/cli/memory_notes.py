"""What `vrampool status` says of a device beside its bars: what holds trials up, proof of release, leftovers, gaps."""

from __future__ import annotations

from collections.abc import Iterator

from vrampool.queueing import ReleaseSummary, WorkerRecord
from vrampool.units import format_bytes

#: Ends of trials that count: of long ago is no proof for today.
RELEASES_SHOWN = 1_000
_FIELDS = {
    "used_bytes": "what is in use",
    "driver_reserved_bytes": "the driver's own part",
    "process_bytes": "what each process holds",
    "busy": "how busy it is",
    "utilisation": "how busy it is",
}


def device_notes(device: WorkerRecord, releases: ReleaseSummary | None) -> Iterator[str]:
    """Yield lines on a device: what holds its trials up, and what is known of its memory."""
    yield from device.held_up
    if releases is not None:
        yield release_words(releases)
    for leftover in device.leftovers:
        yield f"left behind: {leftover}"
    if device.mps is not None:
        if device.mps.short:
            yield device.mps.short
        yield from device.mps.notes
    if device.unknown:
        yield f"it does not tell {', '.join(dict.fromkeys(_FIELDS.get(name, name) for name in device.unknown))}"


def release_words(releases: ReleaseSummary) -> str:
    """Say whether memory came back, and how soon."""
    trials = "trial" if releases.count == 1 else f"{releases.count} trials"
    if releases.most_residue_bytes is None:
        return f"the device does not tell whether the memory of the last {trials} came back"
    when = f"{releases.last_back_s:.1f} s after the last ended, {releases.most_back_s:.1f} s at most"
    if not releases.left_behind:
        return f"memory of the last {trials} came back: {when}"
    return (
        f"memory of {releases.left_behind} of the last {trials} did not come back, "
        f"{format_bytes(releases.most_residue_bytes)} at most; else {when}"
    )
