"""The data plane's part of `vrampool doctor`: devices, torch, and whether a trial's process starts."""

from __future__ import annotations

import contextlib
import os
import selectors
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from vrampool.errors import DeviceConflictError, VrampoolError
from vrampool.settings import Settings
from vrampool.units import format_bytes, parse_budget
from vrampool_worker.children.child import Child, spawn
from vrampool_worker.children.events import Event, EventKind
from vrampool_worker.devices import Device, DeviceReading, device_lock, find_devices
from vrampool_worker.devices.deadline import call_within
from vrampool_worker.environment import child_environment
from vrampool_worker.lanes import Timers, turn
from vrampool_worker.reclaim import find

Found = tuple[str, str, str]
START_LIMIT_S = 30.0
_BETWEEN_READINGS_S = 0.2


def checks(settings: Settings) -> Iterator[Found]:
    """Yield (name, "ok" | "warn" | "fail", text) of each thing looked at."""
    try:
        devices = find_devices(settings, os.environ)
    except VrampoolError as error:
        yield "devices", "fail", str(error)
        return
    for device in devices:
        yield _device(device, settings)
    left = _leftovers(settings)
    if left is not None:
        yield left
    yield _torch(devices)
    yield _child(devices[0], settings)


def _device(device: Device, settings: Settings) -> Found:
    budget = parse_budget(settings.budget, device.total_bytes)
    text = f"{device.name}, {format_bytes(device.total_bytes)}, budget {format_bytes(budget)}"
    try:
        reading = call_within(settings.nvml_timeout_s, lambda: _second_reading(device), name="vrampool-doctor")
    except (TimeoutError, VrampoolError) as error:
        return device.label, "fail", f"{text}; it cannot be read: {error}. Repair it: nvidia-smi must run"
    if reading.fault:
        return device.label, "fail", f"{text}; {reading.fault}"
    if reading.unknown and device.kind == "cuda":
        text += f"; it does not tell {', '.join(reading.unknown)}"
    if reading.used_bytes is not None:
        text += f"; {format_bytes(reading.used_bytes)} in use"
    try:
        with device_lock(device.id, settings.share):
            return device.label, "ok", f"{text}; no worker holds it"
    except DeviceConflictError as error:
        return device.label, "ok", f"{text}; {error}".partition("; stop")[0]


def _second_reading(device: Device) -> DeviceReading:
    """Read a device so that it tells all it can: its utilisation is what lies between two readings."""
    first = device.read()
    if not first.unknown:
        return first
    time.sleep(_BETWEEN_READINGS_S)
    return device.read()


def _leftovers(settings: Settings) -> Found | None:
    """Say what trials have left behind on this host; None: nothing."""
    found = find(settings, look_at_devices=False)
    if not found:
        return None
    parts = [str(item) for item in found.processes] + [f"the directory {path}" for path in found.folders]
    return "leftovers", "warn", f"{'; '.join(parts[:5])}; `vrampool reclaim` lists and ends them"


def _torch(devices: list[Device]) -> Found:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "torch", "warn", "not installed: objectives that need it will fail; pip install 'vrampool[torch]'"
    if version.endswith("+cpu") and any(device.kind == "cuda" for device in devices):
        return "torch", "fail", f"{version} is a build for the CPU, and there is a GPU: install torch's CUDA build"
    return "torch", "ok", version


def _child(device: Device, settings: Settings) -> Found:
    """Start a child as a worker does, and end it."""
    started = time.monotonic()
    heard: list[Event] = []
    timers = Timers()
    with tempfile.TemporaryDirectory(prefix="vp-") as folder, selectors.DefaultSelector() as selector:
        environment = child_environment(os.environ, device, settings)
        child: Child = spawn(environment, (), settings.with_changes(state_dir=Path(folder)))
        child.register(selector, lambda _child, event: heard.append(event), timers.at)
        with contextlib.closing(child):
            ready_s = None
            while not any(event.kind is EventKind.GONE for event in heard):
                now_s = time.monotonic()
                if ready_s is None and any(event.kind is EventKind.READY for event in heard):
                    ready_s = now_s - started
                    child.kill()
                if now_s - started > START_LIMIT_S:
                    child.kill()
                    return "trial's process", "fail", f"does not start within {START_LIMIT_S:.0f} s"
                turn(selector, timers.wait_s(now_s, 0.2))
                timers.run(time.monotonic())
    if ready_s is None:
        return "trial's process", "fail", f"ended while it started: {child.log_tail() or 'it said nothing'}"
    return "trial's process", "ok", f"starts in {ready_s:.2f} s and ends when asked to"
