"""Why a trial waits, in the ledgers' words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vrampool.queueing import WaitingJob, WorkerRecord
from vrampool.units import format_bytes

#: Sentences of so many devices are told; more would not be read.
_MOST = 3


def waiting_rows(
    jobs: Sequence[WaitingJob], workers: Sequence[WorkerRecord], studies: Mapping[str, str], now: float
) -> list[dict[str, Any]]:
    """Return what the page shows of waiting trials, in the order in which they are offered.

    Args:
        jobs: What waits.
        workers: Live workers.
        studies: Names of studies by submission id, as far as they are known.
        now: Seconds since the epoch.
    """
    return [
        {
            "study": studies.get(job.submission_id, ""),
            "number": job.number,
            "asks_bytes": job.vram_bytes,
            "since": job.queued_at or None,
            "why": why_waits(job, workers, now),
        }
        for job in jobs
    ]


def next_rows(
    studies: Iterable[Mapping[str, Any]], workers: Sequence[WorkerRecord], now: float
) -> list[dict[str, Any]]:
    """Return rows for studies that want more trials and have none that waits: trials are asked for as late as possible.

    Args:
        studies: As `study_view` returns them.
        workers: Live workers.
        now: Seconds since the epoch.
    """
    rows = []
    for study in studies:
        wanted = study["wanted"]
        enough = wanted is not None and study["finished"] + study["running"] >= wanted
        if study["state"] != "open" or study["waiting"] or enough:
            continue
        job = WaitingJob("", study["submission"], -1, study["vram"], now)
        why = why_waits(job, workers, now)
        if any(_could_start(study["vram"], worker) for worker in workers):
            why = "it is about to be asked for"
        elif any(worker.state == "ready" for worker in workers):
            why = f"it is asked for when a device has room: {why}"
        rows.append({"study": study["name"], "number": None, "asks_bytes": study["vram"], "since": None, "why": why})
    return rows


def _could_start(vram_bytes: int | None, worker: WorkerRecord) -> bool:
    room = worker.state == "ready" and len(worker.running) < worker.slots
    return room and (not worker.running or (vram_bytes is not None and worker.free_bytes >= vram_bytes))


def why_waits(job: WaitingJob, workers: Sequence[WorkerRecord], now: float) -> str:
    """Say in a sentence or two why a trial has not started yet."""
    if not workers:
        return "no worker is running: start one with `vrampool worker --gpu all`"
    able = [item for item in workers if job.submission_id not in item.refused and item.name not in job.refused_by]
    if not able:
        refusals = [item.refused[job.submission_id] for item in workers if job.submission_id in item.refused]
        return f"no worker can run it: {refusals[0] if refusals else 'each gave it back'}"
    ready = [item for item in able if item.state == "ready"]
    if not ready:
        return "no worker takes trials now: " + "; ".join(
            f"{item.device_name} is {item.state}{': ' + item.reason if item.reason else ''}" for item in able[:_MOST]
        )
    largest = max(item.budget_bytes for item in ready)
    if job.vram_bytes is not None and job.vram_bytes > largest:
        return f"it needs more than the largest device here may hold: {format_bytes(largest)}"
    avoided = [item for item in ready if item.device_id in job.avoid and now < job.avoid_until]
    open_to_it = [item for item in ready if item not in avoided] or ready
    parts = _sentences(sorted(open_to_it, key=_room))
    if avoided:
        names = ", ".join(item.device_name for item in avoided[:_MOST])
        parts.append(f"it keeps away from {names} for {job.avoid_until - now:.0f} s more")
    return "; ".join(parts) or "it is about to be taken"


def _sentences(workers: Sequence[WorkerRecord]) -> list[str]:
    """Return what the ledger with the most room says, and how many others have less."""
    hosts = {item.host for item in workers}
    telling = next((item for item in workers if item.reason), None)
    if telling is None:
        return []
    text = telling.reason if len(hosts) == 1 else f"{telling.host}: {telling.reason}"
    others = len(workers) - 1
    return [text, f"{others} more device{'s have' if others > 1 else ' has'} no more"] if others else [text]


def _room(worker: WorkerRecord) -> tuple[int, str]:
    return -worker.free_bytes, worker.name
