"""From the enqueue of a trial to the first line of its objective, with a spare waiting."""

from __future__ import annotations

import time

import redis

from benchmarks.rows import OBJECTIVES, Row, bench_pool, percentile

TRIALS = 40


def measure() -> list[Row]:
    """Submit trials one at a time, each when a spare waits."""
    with bench_pool() as pool:
        client = redis.Redis.from_url(pool.settings.redis)
        waits = []
        for _ in range(TRIALS):
            time.sleep(0.25)  # the spare that takes the place of the last one gets ready meanwhile
            handle = pool.submit(f"{OBJECTIVES}:first_line", n_trials=1, vram="64MiB").wait()
            trial = handle.trials[0]
            queued_ms = client.hget(f"rq:job:{handle.id}-{trial.number}", "queued_at_ms")
            if queued_ms is not None:
                waits.append(trial.user_attrs["first_line"] - int(queued_ms) / 1000)
        client.close()
    middle, high = percentile(waits, 0.5) * 1000, percentile(waits, 0.95) * 1000
    return [
        Row(f"enqueue to first line, p50 of {len(waits)}", f"{middle:.1f} ms", "15 ms", middle <= 15),
        Row("enqueue to first line, p95", f"{high:.1f} ms", "60 ms", high <= 60),
    ]
