"""What `vrampool top` shows: a snapshot of the pool, and how it is drawn within a terminal of any size."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from vrampool.handle import Progress
from vrampool.queueing import RunningTrial, WaitingJob, WorkerRecord
from vrampool.units import GIB, MIB, format_bytes

#: Rows that a part gets at most while others need the room.
_MOST_WAITING = 8
_MOST_STUDIES = 8
_STATE_STYLES = {"ready": "green", "paused": "yellow", "draining": "yellow", "quarantined": "red", "blind": "red"}
#: Held, leased but not held, free: by form, not by colour alone.
_BLOCKS = ("\u2588", "\u2592", "\u00b7")
_ASCII = ("#", "=", ".")


@dataclass(frozen=True)
class StudyLine:
    """One submission."""

    name: str
    progress: Progress
    best: str = ""
    ooms: int = 0


@dataclass(frozen=True)
class Snapshot:
    """All that is shown."""

    pool: str
    devices: Sequence[WorkerRecord]
    waiting: Sequence[WaitingJob] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)  #: why each job waits, by its id
    studies: Sequence[StudyLine] = ()
    samples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: the latest sample of each device
    now: float = 0.0  #: seconds since the epoch
    problem: str = ""  #: why this is not up to date


def count_ooms(trials: Iterable[Any]) -> int:
    """Count attempts that ran out of memory. Reads the raw facts: a study may have ten thousand."""
    ends = Counter((trial.user_attrs.get("vrampool:attempt") or {}).get("end") for trial in trials)
    return ends["oom"] + ends["infeasible"]


def draw(snapshot: Snapshot, width: int, height: int | None, *, ascii_only: bool = False) -> RenderableType:
    """Draw a snapshot.

    Args:
        snapshot: What is there.
        width: Columns; lines are cut to it.
        height: Rows; what does not fit is counted instead. None: all.
        ascii_only: The terminal's encoding has no block characters.
    """
    marks = _ASCII if ascii_only else _BLOCKS
    fixed = [_head(snapshot, width)]
    if snapshot.problem:
        fixed.append(Text(snapshot.problem, style="red"))
    wide = min(max((len(line.name) for line in snapshot.studies), default=0), max(8, width // 5))
    studies = [_study(line, wide, marks) for line in snapshot.studies]
    waiting = [_waits(job, snapshot) for job in snapshot.waiting]
    devices = [lines for device in snapshot.devices for lines in _device(device, snapshot, width, marks)]
    if not snapshot.devices:
        devices = [Text("no worker is running: start one with `vrampool worker --gpu all`", style="yellow")]
    if height is not None:
        studies = _cut(studies, _MOST_STUDIES, "studies")
        waiting = _cut(waiting, _MOST_WAITING, "waiting trials")
        room = height - len(fixed) - len(studies) - len(waiting) - 2 * bool(studies) - 2 * bool(waiting) - 2
        devices = _cut(devices, max(3, room), "lines")
    parts: list[Text] = [*fixed, Text(""), *devices]
    if waiting:
        parts += [Text(""), Text("waiting", style="bold"), *waiting]
    if studies:
        parts += [Text(""), Text("studies", style="bold"), *studies]
    for part in parts:
        part.no_wrap, part.overflow = True, "crop" if ascii_only else "ellipsis"
    return Group(*parts[:height])


def _cut(lines: list[Text], most: int, what: str) -> list[Text]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], Text(f"  ... {len(lines) - most + 1} more {what}", style="dim")]


def _head(snapshot: Snapshot, width: int) -> Text:
    running = sum(len(device.running) for device in snapshot.devices)
    devices = len(snapshot.devices)
    words = f"{devices} device{'s' if devices != 1 else ''}, {running} running, {len(snapshot.waiting)} waiting"
    left = Text.assemble(("vrampool top", "bold"), f"  pool {snapshot.pool}: {words}")
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.now))
    return _sides(left, Text(clock, style="dim"), width)


def _sides(left: Text, right: Text, width: int) -> Text:
    """Put one text at the left edge and one at the right."""
    room = width - right.cell_len - 1
    if left.cell_len > room:
        left.truncate(max(room, 0))
    left.pad_right(max(1, width - left.cell_len - right.cell_len))
    return left.append_text(right)


def bar(width: int, total: int, held: int, leased: int, marks: Sequence[str] = _BLOCKS) -> Text:
    """Return a bar: what is held, what is leased beyond that, what is free of a total."""
    total = max(total, 1)
    first = round(width * min(held / total, 1))
    if held > 0:
        first = max(first, 1)
    second = max(round(width * min(leased / total, 1)), first)
    full, pale, free = marks
    style = "red" if held > total else "cyan"
    return Text.assemble(
        (full * first, style), (pale * (second - first), "blue"), (free * (width - second), "bright_black")
    )


def _device(device: WorkerRecord, snapshot: Snapshot, width: int, marks: Sequence[str]) -> Iterable[Text]:
    sample = snapshot.samples.get(device.device_id, {})
    held = sum(item.measured_bytes or 0 for item in device.running)
    leased = sum(max(item.lease_bytes, item.measured_bytes or 0) for item in device.running)
    left = Text.assemble((device.device_name, "bold"), (f"  {device.host}", "dim"))
    right = Text(device.state, style=_STATE_STYLES.get(device.state, ""))
    if device.mps is not None and device.mps.short:
        right = Text.assemble(f"{device.mps.short}  ", right)
    if (utilisation := sample.get("utilisation")) is not None:
        right = Text.assemble(f"{100 * utilisation:.0f} % busy  ", right)
    yield _sides(left, right, width)
    words = f"{_of(held, device.budget_bytes)} held, {format_bytes(leased)} leased"
    strangers = sample.get("strangers_bytes") or 0
    if strangers >= 64 * MIB:
        words += f", {format_bytes(strangers)} by others"
    room = max(10, min(44, width - len(words) - 4))
    yield Text.assemble("  ", bar(room, device.budget_bytes, held + strangers, leased + strangers, marks), f"  {words}")
    if device.reason:
        yield Text(f"  {device.reason}", style="dim" if device.state == "ready" else "yellow")
    for note in (*device.held_up, *device.leftovers, *(device.mps.notes if device.mps is not None else ())):
        yield Text(f"  {note}", style="yellow")
    names = [f"{item.study}/{item.number}" for item in device.running]
    wide = min(max(map(len, names), default=0), max(12, width - 56))
    for item, name in zip(device.running, names, strict=True):
        yield _trial(item, name, wide, snapshot.now, marks)


def _trial(item: RunningTrial, name: str, wide: int, now: float, marks: Sequence[str]) -> Text:
    held = item.measured_bytes or 0
    if len(name) > wide:  # the number is what tells trials apart
        number = name[name.rindex("/") :]
        name = name[: max(0, wide - len(number) - 1)] + "~" + number
    words = f"{_of(held, item.lease_bytes)} leased" if item.measured_bytes is not None else (
        f"{format_bytes(item.lease_bytes)} leased"
    )  # fmt: skip
    return Text.assemble(
        f"    {name.ljust(wide)}  ",
        bar(14, item.lease_bytes, held, item.lease_bytes, marks),
        f"  {words.ljust(24)} ",
        (_span(now - item.since), "dim"),
    )


def _of(part: int, whole: int) -> str:
    """Write "2.1 of 3.0 GiB": one unit for both where that can be read."""
    unit, word = (GIB, "GiB") if whole >= GIB else (MIB, "MiB")
    if part and part < unit / 20:
        return f"{format_bytes(part)} of {format_bytes(whole)}"
    form = "{:.1f}" if unit == GIB else "{:.0f}"
    return f"{form.format(part / unit)} of {form.format(whole / unit)} {word}"


def _waits(job: WaitingJob, snapshot: Snapshot) -> Text:
    name = f"{job.study}/{job.number}" if job.study else f"trial {job.number}"
    reason = snapshot.reasons.get(job.job_id, "")
    return Text.assemble((f"  {_span(job.waits_s):>5}  ", "dim"), f"{name} {reason}")


def _study(line: StudyLine, wide: int, marks: Sequence[str]) -> Text:
    progress = line.progress
    wanted = progress.wanted or max(progress.finished + progress.running + progress.waiting, 1)
    of = f"/{progress.wanted}" if progress.wanted is not None else ""
    words = [f"{progress.finished}{of} done"]
    if progress.running or not progress.final:
        words.append(f"{progress.running} running")
    if line.ooms:
        words.append(f"{line.ooms} OOM")
    if progress.state not in ("open", "done"):
        words.append(str(progress.state))
    if line.best:
        words.append(line.best)
    name = line.name if len(line.name) <= wide else f"{line.name[: wide - 1]}~"
    shown = bar(10, wanted, progress.finished, progress.finished, marks)
    return Text.assemble(f"  {name.ljust(wide)}  ", shown, f"  {', '.join(words)}")


def _span(seconds: float) -> str:
    whole = max(0, int(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
