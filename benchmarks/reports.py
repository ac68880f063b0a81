"""Eight trials that report 10 000 steps in total: heartbeats stay on time, and nobody waits for the others."""

from __future__ import annotations

import threading
import time

from benchmarks.rows import OBJECTIVES, Row, bench_pool


class _Beats(threading.Thread):
    """Watches when a worker's beats arrive."""

    def __init__(self, pool) -> None:
        super().__init__(daemon=True)
        self._pool = pool
        self.done = threading.Event()
        self.gaps: list[float] = []

    def run(self) -> None:
        last = None
        while not self.done.wait(0.01):
            for record in self._pool.devices():
                if last is not None and record.beat_at != last:
                    self.gaps.append(record.beat_at - last)
                last = record.beat_at


def measure() -> list[Row]:
    """Run eight reporting trials at once on one worker."""
    with bench_pool(max_trials=8, spares=2) as pool:
        beats = _Beats(pool)
        beats.start()
        started = time.monotonic()
        handle = pool.submit(f"{OBJECTIVES}:reporting", n_trials=8, vram="64MiB").wait()
        wall_s = time.monotonic() - started
        beats.done.set()
        beats.join()
        late = max(beats.gaps) - pool.settings.beat_s
        waits = [trial.user_attrs["should_prune_s"] for trial in handle.trials]
    middle, high, worst = (max(item[index] for item in waits) * 1000 for index in range(3))
    return [
        Row("10 000 reports of 8 trials", f"{wall_s:.1f} s, {10_000 / wall_s:.0f}/s"),
        Row("latest heartbeat behind its time", f"{late * 1000:.0f} ms", "100 ms", late <= 0.1),
        Row("should_prune, p50 / p99", f"{middle:.1f} / {high:.1f} ms", "100 ms", high <= 100),
        Row("should_prune, worst of 10 000", f"{worst:.1f} ms", "100 ms", worst <= 100),
    ]
