"""`vrampool status` and `vrampool why`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from vrampool.cli.manage import running_pool
from vrampool.cli.options import pool_options, take_settings
from vrampool.errors import InputError
from vrampool.units import format_bytes


@click.command()
@click.argument("study_name", required=False)
@pool_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(study_name: str | None, as_json: bool, **given: Any) -> int:
    """Show devices, studies and waiting trials; with STUDY_NAME its trials too."""
    from rich.console import Console

    from vrampool.cli.output import device_view, summary, to_json, trial_table

    pool = running_pool(take_settings(given))
    devices, waiting = pool.devices(), pool.queue()
    handles = [pool.attach(study_name)] if study_name else pool.handles()[-10:]
    if as_json:
        studies = [summary(handle, wall_s=0.0) if study_name else _study(handle) for handle in handles]
        print(
            to_json(
                {
                    "devices": [asdict(item) for item in devices],
                    "studies": studies,
                    "waiting": [asdict(w) for w in waiting],
                }
            )
        )
        return 0
    console = Console()
    if not devices:
        console.print("no worker is running: start one with `vrampool worker --gpu all`", style="yellow")
    for device in devices:
        console.print(device_view(device))
    for handle in handles:
        console.print(repr(handle).strip("<>").removeprefix("vrampool "), markup=False)
        if study_name:
            console.print(trial_table(summary(handle, wall_s=0.0)["trials"]))
    for job in waiting:
        asked = "a whole device" if job.vram_bytes is None else format_bytes(job.vram_bytes)
        console.print(f"waits: trial {job.number} for {asked}", markup=False)
    return 0


def _study(handle: Any) -> dict[str, Any]:
    progress = handle.progress()
    return {"study": handle.study_name, "submission": handle.id} | asdict(progress)


@click.command()
@click.argument("study_name")
@click.argument("number", type=int, required=False)
@pool_options
def why(study_name: str, number: int | None, **given: Any) -> int:
    """Say in words where trial NUMBER of STUDY_NAME is, and why; without NUMBER the study itself."""
    from vrampool.storage import attempt_of

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
        for hint in facts.hints:
            print(f"hint: {hint}")
        if facts.log:
            print(f"its output: {facts.log} on {facts.host}")
        return 0
    request = trial.user_attrs.get("vrampool:request") or {}
    asked = format_bytes(request.get("bytes")) if request.get("bytes") else "a whole device"
    print(f"asks for {asked}: {request.get('reason', 'not sized yet')}")
    if trial.state.name == "WAITING":
        _print_room(handle, pool)
    return 0


def _why_study(handle: Any, pool: Any) -> None:
    """Print where a study is. Trials are created when a device has room, so it may well have none that waits."""
    progress = handle.progress()
    print(repr(handle).strip("<>").removeprefix("vrampool "))
    if progress.reason:
        print(progress.reason)
    for line, count in handle.failures().items():
        print(f"{count} failed: {line}")
    if not progress.final:
        vram = handle.spec.vram
        asked = "what was measured of it so far" if vram == "auto" else format_bytes(vram)
        print(f"each trial asks for {asked}")
        _print_room(handle, pool)


def _print_room(handle: Any, pool: Any) -> None:
    for device in pool.devices():
        print(f"{device.device_name}: {device.state}, {format_bytes(device.free_bytes)} free; {device.reason}")
    reason = handle.without_worker()
    if reason:
        print(reason)
