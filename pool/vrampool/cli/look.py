"""`vrampool status` and `vrampool why`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from vrampool.cli.manage import running_pool
from vrampool.cli.options import pool_options, split_trial, take_settings
from vrampool.errors import InputError
from vrampool.memory.declared import read_vram
from vrampool.messages import AttemptFacts
from vrampool.units import format_bytes

#: Without a name, so many studies are shown: those that were asked for last.
_STUDIES_SHOWN = 10


@click.command()
@click.argument("study_name", required=False)
@pool_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--check", "check_it", is_flag=True, help="Compare storage and Redis; exit code 1 where they differ.")
@click.option("--fix", is_flag=True, help="With --check: mend what differs.")
def status(study_name: str | None, as_json: bool, check_it: bool, fix: bool, **given: Any) -> int:
    """Show devices, studies and waiting trials; with STUDY_NAME its trials too."""
    if fix and not check_it:
        raise InputError("--fix mends what --check finds: give both")
    if check_it:
        from vrampool.cli.check import check

        return check(take_settings(given), fix=fix, as_json=as_json)
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from vrampool.cli.memory_notes import RELEASES_SHOWN, device_notes
    from vrampool.cli.output import device_view, print_failures, summary, to_json, trial_table
    from vrampool.cli.stopped import stopped_parts
    from vrampool.cli.study_lines import by_study, study_line
    from vrampool.queueing import History, summarise
    from vrampool.waiting import why_each_waits

    pool = running_pool(take_settings(given))
    devices, waiting = pool.devices(), pool.queue()
    reasons = why_each_waits(waiting, devices)
    releases = summarise(History(pool.connection, pool.settings.pool).releases(limit=RELEASES_SHOWN))
    handles = pool.handles()
    if study_name:
        asked = pool.attach(study_name)
        handles = [handle for handle in handles if handle.study_name == study_name] or [asked]
    if as_json:
        told = [summary(handle, wall_s=0.0) if study_name else _study(handle) for handle in handles[-10:]]
        print(
            to_json(
                {
                    "devices": [asdict(item) for item in devices],
                    "studies": told,
                    "waiting": [asdict(job) | {"reason": reasons[job.job_id]} for job in waiting],
                    "releases": {device: asdict(item) for device, item in releases.items()},
                }
            )
        )
        return 0
    console = Console()
    if not devices:
        console.print("no worker is running: start one with `vrampool worker --gpu all`", style="yellow")
    for text in stopped_parts(pool.settings.state_dir):
        console.print(text, markup=False, style="yellow", soft_wrap=True)
    for device in devices:
        console.print(device_view(device))
        if device.state == "ready" and device.reason:
            console.print(f"    {device.reason}", markup=False, style="dim", soft_wrap=True)
        for note in device_notes(device, releases.get(device.device_id)):
            console.print(Padding(Text(note), (0, 0, 0, 4), expand=False), style="dim")
    studies = by_study(handles)
    if len(studies) > _STUDIES_SHOWN:
        console.print(f"{len(studies) - _STUDIES_SHOWN} older studies; name one to see it", style="dim")
    for submissions in studies[-_STUDIES_SHOWN:]:
        console.print(study_line(submissions), markup=False, soft_wrap=True)
        if study_name:
            found = [summary(handle, wall_s=0.0) for handle in submissions]
            console.print(trial_table(record for part in found for record in part["trials"]))
            for part in found:
                print_failures(console, part)
    for job in waiting:
        console.print(f"{job.study}/{job.number} {reasons[job.job_id]}", markup=False, soft_wrap=True)
    return 0


def _tax_words(facts: AttemptFacts) -> str:
    """Say what the trial cost beside its own run."""
    waited = "its process was waiting" if facts.spare else f"waited {facts.spawn_s or 0:.2f} s for its process"
    parts = ["forked" if facts.forked else "spawned", waited]
    if facts.import_s is not None and facts.import_s >= 0.005 and not facts.forked:
        parts.append(f"imports {facts.import_s:.2f} s{' ahead of it' if facts.spare else ''}")
    parts.append(f"hand-over {facts.handover_s or 0:.3f} s")
    if facts.context_s is not None:
        parts.append(f"GPU context {facts.context_s:.2f} s")
    if facts.exit_s is not None:
        parts.append(f"exit {facts.exit_s:.2f} s")
    return f"start-up: {', '.join(parts)}"


def _study(handle: Any) -> dict[str, Any]:
    progress = handle.progress()
    return {"study": handle.study_name, "submission": handle.id} | asdict(progress)


@click.command()
@click.argument("study_name", metavar="STUDY[/TRIAL]")
@click.argument("number", metavar="[TRIAL]", type=int, required=False)
@pool_options
def why(study_name: str, number: int | None, **given: Any) -> int:
    """Say in words where a TRIAL of a STUDY is, and why; without TRIAL the study itself."""
    from vrampool.storage import attempt_of

    study_name, number = split_trial(study_name, number)
    pool = running_pool(take_settings(given))
    handle = pool.attach(study_name)
    if number is None:
        _why_study(handle, pool)
        return 0
    found = [trial for trial in handle.study.get_trials(deepcopy=False) if trial.number == number]
    if not found:
        raise InputError(f"study {study_name} has no trial {number}")
    trial = found[0]
    facts = attempt_of(trial)
    print(f"trial {number} is {trial.state.name}")
    for name in ("vrampool:lost", "vrampool:cancelled"):
        if trial.user_attrs.get(name):
            print(trial.user_attrs[name])
    if facts is not None:
        print(f"{facts.end} on {facts.device_name or facts.device} (worker {facts.worker}, pid {facts.pid})")
        print(
            f"request {format_bytes(facts.request_bytes) if facts.request_bytes else 'a whole device'}, "
            f"lease {format_bytes(facts.lease_bytes)}, peak {format_bytes(facts.peak_bytes)}"
        )
        if facts.text:
            print(facts.text)
        if facts.story:
            print(facts.story)
        if facts.handover_s is not None:
            print(_tax_words(facts))
        for line in _what_followed(trial, handle.study):
            print(line)
        for hint in facts.hints:
            print(f"hint: {hint}")
        if facts.log:
            print(f"its output: {facts.log} on {facts.host}")
        return 0
    request = trial.user_attrs.get("vrampool:request") or {}
    asked = format_bytes(request.get("bytes")) if request.get("bytes") else "a whole device"
    print(f"asks for {asked}: {request.get('reason', 'not sized yet')}")
    if trial.state.name == "WAITING":
        print(_why_waits(trial, pool))
    elif trial.state.name == "RUNNING":
        for line in _where_it_runs(study_name, number, pool):
            print(line)
    return 0


def _what_followed(trial: Any, study: Any) -> list[str]:
    """Say which attempt took over, and with how much."""
    from vrampool.storage import REQUEST, mark_of

    for later in study.get_trials(deepcopy=False)[trial.number + 1 :]:
        mark = mark_of(later)
        if mark is not None and mark.retry_of == trial.number:
            reason = (later.user_attrs.get(REQUEST) or {}).get("reason", "")
            return [f"tried again as trial {later.number}: {reason}"]
    return []


def _why_waits(trial: Any, pool: Any) -> str:
    """Say why a trial has not started: over all devices, or that it is on its way between two hands."""
    from vrampool.storage import mark_of
    from vrampool.waiting import NO_WORKER, why_each_waits

    devices, waiting = pool.devices(), pool.queue()
    mark = mark_of(trial)
    if mark is None:
        return "it was enqueued by hand and belongs to no submission yet: the next submission of its study adopts it"
    for job in waiting:
        if (job.submission_id, job.number) == (mark.submission, trial.number):
            return why_each_waits(waiting, devices)[job.job_id]
    if not devices:
        return NO_WORKER
    return "it is in no list: a worker has just taken it, or the coordinator enqueues it again within seconds"


def _where_it_runs(study_name: str, number: int, pool: Any) -> Iterator[str]:
    """Say on which device a trial runs, with which lease, and what the ledger decided last about it."""
    for device in pool.devices():
        for item in device.running:
            if (item.study, item.number) == (study_name, number):
                holds = f", holds {format_bytes(item.measured_bytes)}" if item.measured_bytes is not None else ""
                lease = f"its lease is {format_bytes(item.lease_bytes)}{holds}"
                yield f"runs on {device.device_name} of {device.host} (worker {device.name}): {lease}"
                if item.reason:
                    yield item.reason
                if item.trouble:
                    yield f"it does nothing: {item.trouble}"
                yield from device.troubles


def _why_study(handle: Any, pool: Any) -> None:
    """Print where a study is. Trials are created when a device has room, so it may well have none that waits."""
    progress = handle.progress()
    print(repr(handle).strip("<>").removeprefix("vrampool "))
    if progress.reason:
        print(progress.reason)
    for line, count in handle.failures().items():
        print(f"{count} failed: {line}")
    if not progress.final:
        print(f"each trial asks for {read_vram(handle.spec.vram)}")
        _print_room(handle, pool)


def _print_room(handle: Any, pool: Any) -> None:
    from vrampool.cli.stopped import stopped_parts
    from vrampool.waiting import troubles_of

    for device in pool.devices():
        print(f"{device.device_name} of {device.host}: {device.state}; {device.reason}")
    for text in (*stopped_parts(pool.settings.state_dir), *troubles_of(pool.devices(), handle.study_name)):
        print(text)
    reason = handle.without_worker()
    if reason:
        print(reason)
