"""What a device costs whether trials end on it or not: beats and samples, by the worker's own code."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rq import Queue

from benchmarks.simulation.device import Device, Running
from benchmarks.simulation.server import Server
from benchmarks.simulation.study import REQUEST_BYTES
from vrampool.messages import Ticket
from vrampool.queueing import History, Taken
from vrampool.settings import load_settings
from vrampool_worker.beat import Held
from vrampool_worker.rq_worker import GpuWorker, Pulse

_BEATS = 100


@dataclass(frozen=True)
class Standing:
    """Of one device that runs one trial, each second."""

    trips: float
    bytes: float
    server_s: float


def measure(redis: str) -> Standing:
    """Beat and sample many times on a server that serves nobody else; the pauses between are the default ones."""
    settings = load_settings({"redis": redis, "storage": "sqlite:///none.db", "pool": "standing"}, env={})
    server = Server(redis)
    connection = server.client("standing")
    worker = GpuWorker([Queue("standing", connection=connection)], name="gpu-0", connection=connection)
    worker.register_birth()
    pulse, history = Pulse(worker, connection, settings), History(connection, "standing")
    device = Device("gpu-0", 1)
    ticket = Ticket("standing", "simulated", "submission", 1, 1, REQUEST_BYTES)
    taken = Taken("submission-1", "submission", 1, REQUEST_BYTES, b"", 0.0)
    running = device.start(taken, ticket, "lease", 0.0)
    assert isinstance(running, Running)
    held = Held(device.record(0.0), ("submission-1",), (("submission-1", "execution"),))
    samples = round(settings.beat_s / settings.sample_s)
    server.took()
    before = server.all_bytes()
    server.trips.clear()
    with server.counting():
        for _ in range(_BEATS):
            pulse.beat(held)
            for _ in range(samples):
                history.add_sample(device.device_id, _sample(device, running))
    took_s, trips = server.took(), server.trips.total()
    count = server.all_bytes() - before
    server.close()
    seconds = _BEATS * settings.beat_s
    return Standing(trips / seconds, count / seconds, took_s / seconds)


def _sample(device: Device, running: Running) -> dict[str, object]:
    """Return a sample as `Chronicle.sample` writes it."""
    record = device.record(0.0)
    trial = {
        "study": running.ticket.study_name,
        "number": 1,
        "lease_bytes": running.lease_bytes,
        "measured_bytes": running.peak_bytes,
        "cap_bytes": running.lease_bytes,
        "torch_reserved_bytes": running.peak_bytes,
        "allocated_bytes": running.peak_bytes,
    }
    return {
        "at_s": round(time.time(), 3),
        "worker": device.name,
        "host": record.host,
        "device_id": device.device_id,
        "device_name": record.device_name,
        "total_bytes": record.total_bytes,
        "budget_bytes": record.budget_bytes,
        "used_bytes": running.peak_bytes,
        "driver_reserved_bytes": 0,
        "strangers_bytes": 0,
        "utilisation": 0.9,
        "trials": [trial],
    }
