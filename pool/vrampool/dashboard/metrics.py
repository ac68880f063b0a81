"""Prometheus figures of a pool. Labels are bounded: devices, ends, verdicts, and a few live studies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from vrampool._version import __version__
from vrampool.dashboard.board import Figures
from vrampool.dashboard.tallies import START_BUCKETS_S, Tally
from vrampool.messages import EndKind, Verdict

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Live studies that have figures of their own, the newest ones; devices likewise.
MOST_STUDIES = 20
MOST_DEVICES = 512
_LABEL_CHARS = 80
_STATES = ("ready", "draining", "paused", "quarantined", "blind")
_SAMPLE_GAUGES = (
    ("used", "used_bytes", "In use on the device, whoever holds it"),
    ("driver_reserved", "driver_reserved_bytes", "Kept by the driver"),
    ("strangers", "strangers_bytes", "In use by programs that are not of the pool"),
)


def exposition(figures: Figures) -> bytes:
    """Return the figures in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(figures))
    return generate_latest(registry)


class _Once(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        figures = self._figures
        yield _info()
        yield _gauge("vrampool_redis_up", "1 when Redis answered the last time", float(figures.redis_fault is None))
        yield _gauge(
            "vrampool_storage_up", "1 when the study storage answered the last time", float(not figures.storage_fault)
        )
        yield _gauge("vrampool_trials_waiting", "Trials that wait for a device", figures.waiting)
        yield from _devices(figures)
        yield from _trials(figures.whole)
        yield from _studies(figures.studies)


def _info() -> Metric:
    found = InfoMetricFamily("vrampool", "The dashboard that tells this")
    found.add_metric([], {"version": __version__})
    return found


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _devices(figures: Figures) -> Iterator[Metric]:
    workers = figures.workers[:MOST_DEVICES]
    names = [[worker.host, worker.device_id, worker.name] for worker in workers]
    labels = ["host", "device", "worker"]

    def family(name: str, text: str, values: Iterable[float | None]) -> Metric:
        found = GaugeMetricFamily(f"vrampool_{name}", text, labels=labels)
        for label_values, value in zip(names, values, strict=True):
            if value is not None:
                found.add_metric(label_values, value)
        return found

    yield family("device_budget_bytes", "What trials may have in use", (w.budget_bytes for w in workers))
    yield family("device_total_bytes", "The device's memory", (w.total_bytes for w in workers))
    yield family("device_free_bytes", "What a new trial could be granted", (w.free_bytes for w in workers))
    yield family("trials_running", "Trials that hold a lease", (len(w.running) for w in workers))
    leases = (sum(item.lease_bytes for item in w.running) for w in workers)
    yield family("lease_bytes", "Granted to running trials", leases)
    measured = (sum(item.measured_bytes or 0 for item in w.running) for w in workers)
    yield family("measured_bytes", "Held by running trials, measured", measured)
    samples = [figures.samples.get(worker.name, {}) for worker in workers]
    for name, key, text in _SAMPLE_GAUGES:
        yield family(f"device_{name}_bytes", text, (sample.get(key) for sample in samples))
    busy = (sample.get("utilisation") for sample in samples)
    yield family("device_sm_utilisation_ratio", "Share of multiprocessors at work", busy)
    residue = (figures.residue_bytes.get(worker.device_id, 0) for worker in workers)
    yield family("residue_bytes", "Left behind by trials released within the last hour", residue)
    told = [worker.mps for worker in workers]
    on = (None if mps is None else float(mps.state == "on") for mps in told)
    yield family("device_mps", "1 where trials run under NVIDIA's MPS, 0 where it was asked for and is not on", on)
    clients = (None if mps is None else mps.clients for mps in told)
    yield family("mps_clients", "Trials that run as clients of MPS", clients)
    outside = (None if mps is None else len(mps.outside) for mps in told)
    yield family("mps_objectives_outside", "Objectives that run outside MPS for good, after a fault", outside)
    states = GaugeMetricFamily("vrampool_device_state", "1 for the state a device is in", labels=[*labels, "state"])
    for label_values, worker in zip(names, workers, strict=True):
        for state in _STATES:
            states.add_metric([*label_values, state], float(worker.state == state))
    yield states


def _trials(whole: Tally) -> Iterator[Metric]:
    ended = CounterMetricFamily("vrampool_attempts_ended", "Attempts at trials that have ended", labels=["end"])
    for end in EndKind:
        ended.add_metric([end.value], whole.ends[end])
    yield ended
    ooms = CounterMetricFamily("vrampool_out_of_memory", "Out-of-memory errors by verdict", labels=["verdict"])
    for verdict in Verdict:
        ooms.add_metric([verdict.value], whole.verdicts[verdict])
    yield ooms
    yield CounterMetricFamily("vrampool_retries", "Attempts that followed a failed one", value=whole.retries)
    yield CounterMetricFamily("vrampool_run_seconds", "Time in which objectives ran", value=whole.run_s)
    yield CounterMetricFamily("vrampool_wait_seconds", "Time in which trials waited", value=whole.wait_s)
    sums = accumulate(whole.starts[bound] for bound in START_BUCKETS_S)
    buckets = [
        ("+Inf" if math.isinf(bound) else str(bound), float(count))
        for bound, count in zip(START_BUCKETS_S, sums, strict=True)
    ]
    text = "Start-up tax: time in which a trial held its lease and did not work yet"
    yield HistogramMetricFamily("vrampool_startup_seconds", text, buckets=buckets, sum_value=whole.start_s)


def _studies(studies: Iterable[dict[str, object]]) -> Iterator[Metric]:
    live = [study for study in studies if study["live"]][:MOST_STUDIES]
    for key, text in (
        ("wanted", "Trials asked for"),
        ("finished", "Trials that have ended for good"),
        ("running", "Trials that run"),
        ("waiting", "Trials that wait"),
    ):
        found = GaugeMetricFamily(f"vrampool_study_trials_{key}", f"{text}, of a live study", labels=["study"])
        for study in live:
            value = study[key]
            if isinstance(value, int):
                found.add_metric([str(study["name"])[:_LABEL_CHARS]], value)
        yield found
