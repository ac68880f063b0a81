"""Why a trial waits, in one sentence over all devices of the pool. Pure.

::

    waits for 14.2 GiB: GPU 0 has 9.1 GiB free, GPU 1 is earmarked for digits/31
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from vrampool.queueing import WaitingJob, WorkerRecord
from vrampool.queueing.taking import WINDOW
from vrampool.units import format_bytes

#: Devices of which something of their own is said; of more than that nobody reads.
_MOST = 8

NO_WORKER = "no worker is running: start one with `vrampool worker --gpu all` (or `--gpu cpu`)"


def why_each_waits(jobs: Sequence[WaitingJob], workers: Sequence[WorkerRecord]) -> dict[str, str]:
    """Say of each trial why it waits.

    Args:
        jobs: All that wait, in their order (`JobQueue.waiting`).
        workers: The records of all live workers (`Registry.workers`).

    Returns:
        A sentence by job id.
    """
    labels = device_labels(workers)
    marked = {job.earmarked_by: job for job in jobs if job.earmarked_by}
    return {job.job_id: _sentence(job, place, workers, labels, marked) for place, job in enumerate(jobs, start=1)}


def device_labels(workers: Sequence[WorkerRecord]) -> dict[str, str]:
    """Name each worker's device as shortly as the pool allows, by worker: "GPU 0", or "GPU 0 of node7"."""
    short = {worker.name: _short(worker) for worker in workers}
    twice = {label for label, count in Counter(short.values()).items() if count > 1}
    labels = {
        worker.name: f"{short[worker.name]} of {worker.host}" if short[worker.name] in twice else short[worker.name]
        for worker in workers
    }
    twice = {label for label, count in Counter(labels.values()).items() if count > 1}  # a device that is shared
    return {name: f"{label} ({name})" if label in twice else label for name, label in labels.items()}


def _sentence(
    job: WaitingJob,
    place: int,
    workers: Sequence[WorkerRecord],
    labels: Mapping[str, str],
    marked: Mapping[str, WaitingJob],
) -> str:
    wish = "a device of its own" if job.vram_bytes is None else format_bytes(job.vram_bytes)
    if not workers:
        return f"waits for {wish}: {NO_WORKER}"
    told = sorted(
        (_about(job, worker, labels[worker.name], marked.get(worker.name)) for worker in workers),
        key=lambda item: item[0],
    )
    parts = [text for _, text in told[:_MOST]]
    if len(told) > _MOST:
        parts.append(f"and {len(told) - _MOST} more devices")
    text = f"waits for {wish}: {', '.join(parts)}"
    if all(rank >= _NEVER for (rank, _), _ in told):
        text += "; no device of the pool can run it as it is"
    elif place > WINDOW:
        text += f"; it is number {place} in line, and devices look at the first {WINDOW}"
    elif job.passed_over_s is not None and not job.earmarked_by:
        text += f"; passed over for {job.passed_over_s:.0f} s"
    return text


#: From this rank on a device will not run the trial, however long it waits.
_NEVER = 10

_Rank = tuple[int, int]


def _about(job: WaitingJob, worker: WorkerRecord, label: str, other: WaitingJob | None) -> tuple[_Rank, str]:
    """Say what one device has against the trial, and how near it is to taking it: the nearest is named first.

    `other` is the trial that the device is kept free for, if any; it may be this one.
    """
    never = _why_never(job, worker, label)
    if never:
        return (_NEVER, 0), never
    if worker.state != "ready":
        return (5, 0), _said(worker, label) or f"{label} is {worker.state}"
    away_s = job.avoid_until - (job.queued_at + job.waits_s)
    if worker.device_id in job.avoid and away_s > 0:
        return (4, 0), f"{label} is avoided for {away_s:.0f} s more, as its memory ran out there"
    if job.submission_id in worker.full_submissions:
        return (4, 2), f"{label} runs as many trials of its submission as it may"
    if other is job:
        return (0, 0), f"{label} is earmarked for it and {_room(worker)} so far"
    # What the device may give to others beside its earmark it says once it has heard of it.
    if other is not None and not _fits(job, worker.open_bytes if worker.earmark else 0, idle=False):
        return (2, 0), f"{label} is earmarked for {_name(other, job)}"
    if job.vram_bytes is None and _gives_at_most(worker) <= job.beyond_bytes:
        return (4, 1), f"{label} has only {format_bytes(_gives_at_most(worker))} beside what other programs hold"
    if _fits(job, worker.free_bytes, idle=not worker.running):
        return (1, 0), f"{label} has room for it"
    if job.vram_bytes is None:
        return (3, len(worker.running)), f"{label} {_room(worker) if not worker.running else _trials(worker)}"
    if job.vram_bytes > _gives_at_most(worker):
        return (4, 1), f"{label} has only {format_bytes(worker.most_bytes)} beside what other programs hold"
    if not worker.free_bytes and worker.reason:
        return (3, 0), _said(worker, label)
    return (3, -worker.free_bytes), f"{label} {_room(worker)}"


def _why_never(job: WaitingJob, worker: WorkerRecord, label: str) -> str:
    refused = worker.refused.get(job.submission_id)
    if refused:
        return f"{label} cannot run it ({refused})"
    if worker.name in job.refused_by:
        return f"{label} gave it back for good"
    lacks = [word for word in job.requires if word not in (worker.device_kind, *worker.capabilities)]
    if lacks:
        return f"{label} lacks {' and '.join(lacks)}"
    if job.vram_bytes is not None and job.vram_bytes > worker.budget_bytes:
        return f"{label} may hold no more than {format_bytes(worker.budget_bytes)}"
    if job.vram_bytes is None and worker.budget_bytes <= job.beyond_bytes:
        return f"{label} may hold no more than {format_bytes(worker.budget_bytes)}, and it has failed with that much"
    return ""


def _gives_at_most(worker: WorkerRecord) -> int:
    return worker.budget_bytes if worker.most_bytes is None else worker.most_bytes


def _fits(job: WaitingJob, free_bytes: int, *, idle: bool) -> bool:
    return idle and free_bytes > 0 if job.vram_bytes is None else job.vram_bytes <= free_bytes


def _short(worker: WorkerRecord) -> str:
    return worker.device_name.partition(" (")[0] or worker.device_id


def _said(worker: WorkerRecord, label: str) -> str:
    """Return the ledger's own sentence; it knows its device by the short name alone."""
    return worker.reason.replace(_short(worker), label, 1)


def _room(worker: WorkerRecord) -> str:
    return f"has {format_bytes(worker.free_bytes)} free" if worker.free_bytes else "has nothing free"


def _trials(worker: WorkerRecord) -> str:
    return "runs 1 trial" if len(worker.running) == 1 else f"runs {len(worker.running)} trials"


def _name(other: WaitingJob, job: WaitingJob) -> str:
    """Name another trial: by its number alone within one study."""
    return f"trial {other.number}" if other.study == job.study else f"{other.study}/{other.number}"


def troubles_of(workers: Sequence[WorkerRecord], study: str) -> list[str]:
    """Say what holds up trials of a study that have started or are to start, and what helps, a line for each."""
    labels = device_labels(workers)
    found = []
    for worker in workers:
        running = [item for item in worker.running if item.trouble and item.study == study]
        found += [f"{item.study}/{item.number} on {labels[worker.name]}: {item.trouble}" for item in running]
        found += [f"{labels[worker.name]}: {text}" for text in worker.troubles]
    return found


#: Pause between two looks of somebody who waits for a study: each asks for the records of all workers.
TROUBLE_LOOK_S = 5.0


class TroubleNews:
    """What holds up trials of a study, each told once, to somebody who waits for it.

    Args:
        study: Its name.
        workers: Returns the records of all live workers.
        now_s: The time, by a clock that only goes forward; nothing is looked for before a pause.
    """

    def __init__(self, study: str, workers: Callable[[], Sequence[WorkerRecord]], now_s: float) -> None:
        self._study = study
        self._workers = workers
        self._looked_s = now_s
        self._told: set[str] = set()

    def at(self, now_s: float) -> list[str]:
        """Return what is new; most of the time nothing is looked for."""
        if now_s - self._looked_s < TROUBLE_LOOK_S:
            return []
        self._looked_s = now_s
        news = [text for text in troubles_of(self._workers(), self._study) if text not in self._told]
        self._told.update(news)
        return news
