"""From the enqueue of a trial to the first line of its objective, with a spare waiting."""

from __future__ import annotations

import redis

from benchmarks.rows import OBJECTIVES, Row, bench_pool, percentile

TRIALS = 40


def measure() -> list[Row]:
    """Run trials one after another; each is enqueued when the one before has ended, and finds a spare waiting."""
    with bench_pool() as pool:
        client = redis.Redis.from_url(pool.settings.redis)
        handle = pool.submit(f"{OBJECTIVES}:first_line", n_trials=TRIALS, vram="512MiB", max_concurrent_trials=1).wait()
        waits = []
        for trial in handle.trials:
            queued_ms = client.hget(f"rq:job:{handle.id}-{trial.number}", "queued_at_ms")
            if queued_ms is not None and trial.user_attrs["vrampool:attempt"]["spare"]:
                waits.append(trial.user_attrs["first_line"] - int(queued_ms) / 1000)
        client.close()
    middle, high = percentile(waits, 0.5) * 1000, percentile(waits, 0.95) * 1000
    return [
        Row(f"enqueue to first line, p50 of {len(waits)}", f"{middle:.1f} ms", "15 ms", middle <= 15),
        Row("enqueue to first line, p95", f"{high:.1f} ms", "60 ms", high <= 60),
    ]
