"""A real card as tests see it: what is in use there, and by whom; and pools on it."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from support.pools import LivePool, PoolMaker, facts_of
from support.waiting import until

import vrampool
from vrampool.units import GIB, MIB

OBJECTIVES = Path(__file__).with_name("card_work.py")
#: What a driver rounds and frees late.
NOISE_BYTES = 64 * MIB
#: Names of device files begin so.
DEVICES = "/dev/nvidia"
#: With an import of torch in each process that no spare waits for.
START_S = 60.0


#: Marks of all tests on a card. None is to take longer than two minutes; one that does must not end the others.
on_card = [
    pytest.mark.gpu,
    pytest.mark.timeout(120, method="signal"),
    pytest.mark.skipif(
        shutil.which("nvidia-smi") is None and not Path("/dev/nvidiactl").exists(), reason="needs an NVIDIA GPU"
    ),
]


@functools.cache
def handle() -> Any:
    """The first card. Not asked for before a test runs: others bring a driver of their own."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def uuid() -> str:
    return str(pynvml.nvmlDeviceGetUUID(handle()))


def memory() -> Any:
    """Total, used and the driver's reserved bytes, as the driver tells them."""
    return pynvml.nvmlDeviceGetMemoryInfo(handle(), version=pynvml.nvmlMemory_v2)


def used_bytes() -> int:
    return int(memory().used)


@pytest.fixture(scope="module")
def baseline_bytes() -> int:
    """What is in use of the card before a module has a pool; each folder's conftest.py imports it."""
    return used_bytes()


def compute_processes() -> dict[int, int | None]:
    """Pids on the card with what they hold, as the driver names them."""
    return {item.pid: item.usedGpuMemory for item in pynvml.nvmlDeviceGetComputeRunningProcesses(handle())}


def has_card_open(pid: int) -> bool:
    """Say whether a process has a device file of NVIDIA's open, as every user of CUDA has."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if str(link.readlink()).startswith(DEVICES):
                return True
        except OSError:
            continue
    return False


def await_back(baseline_bytes: int, *, limit_s: float = 20.0) -> None:
    """Wait until no more than before is in use on the card."""

    def back() -> bool:
        return used_bytes() <= baseline_bytes + NOISE_BYTES

    try:
        until(back, timeout_s=limit_s)
    except AssertionError:
        more = (used_bytes() - baseline_bytes) // MIB
        raise AssertionError(f"{more} MiB more than before are in use, by {compute_processes()}") from None


def card_pool(maker: PoolMaker, **settings: Any) -> LivePool:
    """Start a pool on the first card, with torch imported ahead; wait for its worker."""
    defaults: dict[str, Any] = {"gpu": "0", "share": False, "preload": "torch,torch._dynamo", "concurrency": "memory"}
    made = maker(**{**defaults, **settings})
    made.reserved_bytes = int(memory().reserved)
    made.vram = "2GiB"
    until(made.devices, what="a worker on the card", timeout_s=START_S)
    return made


def objective(name: str) -> str:
    return f"{OBJECTIVES}:{name}"


def told(handle: vrampool.Handle) -> str:
    """All that is known of a submission's trials, for whoever reads of a test that failed."""
    lines = [f"{handle.study_name}: {handle.progress()}"]
    for trial in handle.trials:
        lines.append(f"  trial {trial.number} {trial.state.name} {trial.values} {trial.params}")
        try:
            facts = facts_of(trial)
        except AssertionError as error:
            lines.append(f"    {error}")
            continue
        lease = f"lease {facts.lease_bytes / GIB:.2f} GiB, cap {(facts.cap_bytes or 0) / GIB:.2f} GiB"
        peak = f"peak {(facts.peak_bytes or 0) / GIB:.2f} GiB"
        lines.append(f"    {facts.end} {facts.verdict or ''} {lease}, {peak}, mps {facts.mps} {facts.mps_reason}")
        times = {name: getattr(facts, name) for name in ("wait_s", "spawn_s", "import_s", "handover_s", "context_s")}
        lines.append(f"    forked {facts.forked}, spare {facts.spare}, {times}, run {facts.run_s}, exit {facts.exit_s}")
        lines.append(f"    {facts.text}")
        log = Path(facts.log or "/none")
        if facts.text and log.exists():
            lines += [f"    | {line}" for line in log.read_text(errors="replace").splitlines()[-15:]]
    return "\n".join(lines)


def await_end(handle: vrampool.Handle, limit_s: float = 90.0) -> vrampool.Handle:
    """Wait for a submission; where it does not end, say how its trials stand."""
    try:
        return handle.wait(limit_s)
    except TimeoutError:
        raise AssertionError(f"it did not end within {limit_s:g} s: {told(handle)}") from None


def await_files(
    folder: Path, pattern: str, number: int, describe: Callable[[], str], limit_s: float = 60.0
) -> list[Path]:
    """Wait until so many files of that name are there: each is left by a trial."""

    def enough() -> list[Path]:
        found = sorted(folder.glob(pattern))
        return found if len(found) >= number else []

    try:
        return until(enough, timeout_s=limit_s)
    except AssertionError:
        here = sorted(path.name for path in folder.iterdir())
        raise AssertionError(f"of {number} files {pattern} there are {here}\n{describe()}") from None
