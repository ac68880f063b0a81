"""What the page shows of a device: its worker's record beside the newest sample. Pure; all in plain JSON types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vrampool.queueing import WorkerRecord

#: Memory that is still in use after a trial has gone is noise up to here: drivers keep some of it for a while.
RESIDUE_NOISE_BYTES = 64 * 1024**2
RESIDUE_S = 3600.0


def key_of(worker: WorkerRecord, workers: Sequence[WorkerRecord]) -> str:
    """Return the name of a device's card. It stays when another worker takes the device over.

    Args:
        worker: The device's worker.
        workers: All that are there: those that share a device have a card each.
    """
    sharing = [item.name for item in workers if (item.host, item.device_id) == (worker.host, worker.device_id)]
    return worker.name if len(sharing) > 1 else f"{worker.host}/{worker.device_id}"


def card(
    key: str, worker: WorkerRecord, newest: Mapping[str, Any] | None, *, gone_s: float | None = None
) -> dict[str, Any]:
    """Return a device for the page.

    Args:
        key: The card's name.
        worker: As its worker last told.
        newest: The device's newest sample; None: there is none.
        gone_s: The worker fell silent so many seconds ago; None: it is there.
    """
    sample = newest or {}
    known = {(item.get("study"), item.get("number")): item for item in sample.get("trials") or ()}
    label, _, name = worker.device_name.partition(" (")
    state, reason = worker.state, worker.reason
    if gone_s is not None:
        state, reason = "gone", "its worker is not heard any more; its trials are given to others"
    return {
        "key": key,
        "worker": worker.name,
        "host": worker.host,
        "device": worker.device_id,
        "label": label[:1].upper() + label[1:],
        "name": name.rstrip(")"),
        "kind": worker.device_kind,
        "state": state,
        "reason": reason,
        "total_bytes": worker.total_bytes,
        "budget_bytes": worker.budget_bytes,
        "free_bytes": worker.free_bytes if gone_s is None else 0,
        "slots": worker.slots,
        "used_bytes": sample.get("used_bytes"),
        "driver_bytes": sample.get("driver_reserved_bytes"),
        "others_bytes": sample.get("strangers_bytes"),
        "utilisation": sample.get("utilisation"),
        "mps": worker.mps.short if worker.mps is not None and gone_s is None else None,
        "notes": _notes(worker) if gone_s is None else [],
        "trials": [
            {
                "study": item.study,
                "number": item.number,
                "since": item.since,
                "lease_bytes": item.lease_bytes,
                "measured_bytes": _first(_of(known, item, "measured_bytes"), item.measured_bytes),
                "reserved_bytes": _of(known, item, "torch_reserved_bytes"),
                "allocated_bytes": _of(known, item, "allocated_bytes"),
                "cap_bytes": _of(known, item, "cap_bytes"),
                "peak_bytes": item.peak_bytes,
            }
            for item in (worker.running if gone_s is None else ())
        ],
    }


def _notes(worker: WorkerRecord) -> list[str]:
    """Return what somebody may want to do something about."""
    return [*worker.held_up, *worker.leftovers, *(worker.mps.notes if worker.mps is not None else ())]


def _of(known: Mapping[Any, Mapping[str, Any]], trial: Any, name: str) -> Any:
    return known.get((trial.study, trial.number), {}).get(name)


def _first(one: Any, other: Any) -> Any:
    return other if one is None else one


def own_samples(
    samples: Iterable[Mapping[str, Any]], worker: WorkerRecord, workers: Sequence[WorkerRecord]
) -> list[Mapping[str, Any]]:
    """Return those samples of a device's ring that belong to a worker's card.

    These are its own, and those of workers that had the device before it. Workers that share a device have a ring in
    common, and so have the CPUs of several hosts; what a dead worker left goes to one that is alone in its place.
    """
    live = {item.name for item in workers}
    alone = sum(item.device_id == worker.device_id and item.host == worker.host for item in workers) == 1
    return [
        sample
        for sample in samples
        if (writer := sample.get("worker")) == worker.name
        or (writer not in live and alone and sample.get("host", worker.host) == worker.host)
    ]


def residues(releases: Iterable[Mapping[str, Any]], now: float) -> dict[str, int]:
    """Return by device what trials that were released within the last hour left behind, in bytes."""
    found: dict[str, int] = {}
    for release in releases:
        left = release.get("residue_bytes")
        recent = now - float(release.get("at") or 0.0) <= RESIDUE_S
        if isinstance(left, int) and left > RESIDUE_NOISE_BYTES and recent:
            device = str(release.get("device_id") or "")
            found[device] = found.get(device, 0) + left
    return found
