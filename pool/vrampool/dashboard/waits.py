"""What the page shows of trials that wait, with the sentence that `vrampool why` has for each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vrampool.queueing import WaitingJob, WorkerRecord
from vrampool.waiting import why_each_waits


def waiting_rows(
    jobs: Sequence[WaitingJob], workers: Sequence[WorkerRecord], studies: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return what the page shows of waiting trials, in the order in which they are offered.

    Args:
        jobs: What waits.
        workers: Live workers.
        studies: Names of studies by submission id, as far as they are known.
    """
    whys = why_each_waits(jobs, workers)
    return [
        {
            "study": job.study or studies.get(job.submission_id, ""),
            "number": job.number,
            "asks_bytes": job.vram_bytes,
            "since": job.queued_at or None,
            "why": whys[job.job_id],
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
        asks_bytes = study["next_bytes"] if study["vram"] is None else study["vram"]
        job = WaitingJob("", study["submission"], -1, asks_bytes, now)
        why = why_each_waits([job], workers)[job.job_id]
        if any(_could_start(asks_bytes, worker) for worker in workers):
            why = "it is about to be asked for"
        elif any(worker.state == "ready" for worker in workers):
            why = f"it is asked for when a device has room; until then it {why}"
        row = {"study": study["name"], "number": None, "asks_bytes": asks_bytes, "about": study["vram"] is None}
        rows.append({**row, "since": None, "why": why})
    return rows


def _could_start(vram_bytes: int | None, worker: WorkerRecord) -> bool:
    room = worker.state == "ready" and len(worker.running) < worker.slots
    return room and (not worker.running or (vram_bytes is not None and worker.free_bytes >= vram_bytes))
