"""What a pool costs while it idles: memory of its processes, CPU, and what the parent has imported."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from benchmarks.rows import Row, bench_pool

IDLE_S = 10.0


def _pss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _find(pool_pid: int, word: str) -> psutil.Process:
    for process in psutil.Process(pool_pid).children(recursive=True):
        command = process.cmdline()
        if word in command and "vrampool_worker.child" not in command:
            return process
    raise LookupError(word)


def measure() -> list[Row]:
    """Let a pool idle for a while and look at it. Needs the right to read other processes' smaps: root, usually."""
    with bench_pool() as pool:
        host = pool.local.record.pid
        worker, coordinator = _find(host, "vrampool_worker"), _find(host, "coordinator")
        try:
            maps = Path(f"/proc/{worker.pid}/maps").read_text()
            sizes = _pss_mib(worker.pid), _pss_mib(coordinator.pid)
        except PermissionError:
            return [Row("memory of the pool's processes", "not readable: run as root")]
        before = sum(sum(process.cpu_times()[:2]) for process in (worker, coordinator))
        time.sleep(IDLE_S)
        share = (sum(sum(process.cpu_times()[:2]) for process in (worker, coordinator)) - before) / IDLE_S * 100
    return [
        Row("worker, idle", f"{sizes[0]:.0f} MiB PSS", "90 MiB", sizes[0] <= 90),
        Row("coordinator, idle", f"{sizes[1]:.0f} MiB PSS", "130 MiB", sizes[1] <= 130),
        Row("both, idle", f"{share:.2f} % of a core", "2 %", share < 2),
        Row("torch in the worker", "no" if "libtorch" not in maps else "yes", "no", "libtorch" not in maps),
    ]
