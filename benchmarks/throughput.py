"""No-op trials, each in a fresh process, against a bare spawn loop in the same run."""

from __future__ import annotations

import multiprocessing
import time

import optuna
import redis

from benchmarks.objectives import spawned
from benchmarks.rows import OBJECTIVES, Row, bench_pool

TRIALS = 150
BARE = 60


def bare_loop(count: int = BARE, at_once: int = 2) -> float:
    """Return processes a second of a bare `multiprocessing` spawn loop."""
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    started = time.monotonic()
    running: list[multiprocessing.process.BaseProcess] = []
    for number in range(count):
        if len(running) == at_once:
            running.pop(0).join()
        process = context.Process(target=spawned, args=(number, queue))
        process.start()
        running.append(process)
    for process in running:
        process.join()
    return count / (time.monotonic() - started)


def measure() -> list[Row]:
    """Measure both, the bare loop before and after the pool."""
    before = bare_loop()
    with bench_pool(spares=2) as pool:
        client = redis.Redis.from_url(pool.settings.redis)
        reads = int(client.info("stats")["total_reads_processed"])
        started = time.monotonic()
        sampler = optuna.samplers.RandomSampler()
        handle = pool.submit(f"{OBJECTIVES}:noop", n_trials=TRIALS, vram="512MiB", sampler=sampler).wait()
        rate = TRIALS / (time.monotonic() - started)
        trips = (int(client.info("stats")["total_reads_processed"]) - reads) / TRIALS
        pids = {attempt["pid"] for attempt in (trial.user_attrs["vrampool:attempt"] for trial in handle.trials)}
        client.close()
    after = bare_loop()
    bare = (before + after) / 2
    return [
        Row("bare spawn loop, two at once", f"{bare:.1f}/s"),
        Row(f"no-op trials ({len(pids)} processes for {TRIALS} trials)", f"{rate:.1f}/s"),
        Row("against the bare loop", f"{rate / bare:.2f}", "0.35", rate / bare >= 0.35),
        Row("reads of Redis per trial, all processes", f"{trips:.1f}", "15", trips <= 15),
    ]
