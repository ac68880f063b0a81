"""The memory of one trial as its own process keeps it: its cap, what it holds, and the seeds set beside."""

# Not pathlib here: it takes longer to import than all of this may.
# ruff: noqa: PTH123

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vrampool.messages import ChildFrame, ChildStart, MemorySample
from vrampool.units import MIB
from vrampool_worker.child.import_hooks import after_import

if TYPE_CHECKING:
    from vrampool_worker.child.torch_runtime import TorchRuntime

#: RLIMIT_DATA counts what is reserved, and not what is touched. Between the two lie, with NumPy and a CUDA build of
#: torch loaded, 254 MiB, and 46 MiB more for each further thread (stack, arena, buffers; measured with 1 to 16).
DATA_SLACK_BYTES = 320 * MIB
DATA_SLACK_PER_THREAD_BYTES = 64 * MIB
#: Left free when the limit is lowered below what is in use.
_PIECE_BYTES = 16 * MIB
#: Of all processes of this host the kernel shall take a trial first, never a worker or a database.
OOM_SCORE_ADJ = 800


def volunteer_for_oom() -> None:
    """Tell the kernel's OOM killer to take this process, and what it starts, before others."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            if int(file.read()) < OOM_SCORE_ADJ:
                file.seek(0)
                file.write(str(OOM_SCORE_ADJ))
    except OSError:  # read-only /proc in some containers
        pass


def data_slack_bytes() -> int:
    """Return what RLIMIT_DATA must leave beyond the cap, for the threads that libraries will start in this process."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(text) if text.isdigit() else len(os.sched_getaffinity(0))
    return DATA_SLACK_BYTES + max(0, threads - 1) * DATA_SLACK_PER_THREAD_BYTES


def _data_bytes() -> int:
    """Return what RLIMIT_DATA counts of this process now."""
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("VmData:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


class TrialMemory:
    """Sets the cap before user code runs, changes it on the worker's word, and reads what is held.

    On the CPU the cap is RLIMIT_DATA: the kernel's own, for each process of the trial, private memory only. On a GPU it
    is the fraction of torch's allocator, set when torch comes into the process.
    """

    def __init__(self, start: ChildStart, send: Callable[..., None]) -> None:
        self._start = start
        self._send = send
        self._cap_bytes = start.cap_bytes
        self._torch: TorchRuntime | None = None
        self._ooms_handled = 0
        self._slack_bytes = data_slack_bytes()

    def begin(self) -> tuple[int | None, str]:
        """Set the cap; return it and what enforces it, in words."""
        after_import("torch", self._on_torch)
        if self._cap_bytes is None:
            return None, "none"
        if self._start.device == "cpu":
            return self._limit_data(self._cap_bytes, self._start.ceiling_bytes or self._cap_bytes), "RLIMIT_DATA"
        if self._torch is None:
            return self._cap_bytes, "torch, once it is imported"
        return self._torch.cap_bytes(), "torch" if self._torch.active else "torch, at its first use of CUDA"

    def _limit_data(self, cap_bytes: int, ceiling_bytes: int | None = None) -> int:
        """Set RLIMIT_DATA and return the cap in force: never above the ceiling, nor below what is in use already.

        Args:
            cap_bytes: The soft limit, which the kernel goes by; it can be moved.
            ceiling_bytes: The hard limit, which nobody can raise again; None: it stays.
        """
        _, hard_bytes = resource.getrlimit(resource.RLIMIT_DATA)
        known = hard_bytes != resource.RLIM_INFINITY
        if ceiling_bytes is not None:
            wanted_bytes = max(ceiling_bytes, cap_bytes) + self._slack_bytes
            hard_bytes = min(hard_bytes, wanted_bytes) if known else wanted_bytes
            known = True
        limit_bytes = cap_bytes + self._slack_bytes
        if ceiling_bytes is None:  # moved while the trial runs: its next small piece must not be what fails
            limit_bytes = max(limit_bytes, _data_bytes() + _PIECE_BYTES)
        if known:
            limit_bytes = min(limit_bytes, hard_bytes)
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard_bytes))
        return limit_bytes - self._slack_bytes

    def _on_torch(self) -> None:
        """Take torch in hand, at hand-over or at the end of its import."""
        if self._start.device == "cuda":
            from vrampool_worker.child.torch_runtime import TorchRuntime

            self._torch = TorchRuntime(
                cap_bytes=self._cap_bytes,
                total_bytes=self._start.total_bytes,
                interval_s=self._start.sample_interval_s,
                send=self._send_sample,
            )
            self._torch.begin()

    def _send_sample(self, frame: ChildFrame, **fields: Any) -> None:
        self._send(frame, **{**fields, "num_ooms_handled": self._ooms_handled})

    def recap(self, cap_bytes: int) -> None:
        """Change the cap and tell the worker what it has become. Called by the thread that reads the socket."""
        self._cap_bytes = cap_bytes
        if self._torch is not None:
            self._torch.recap(cap_bytes, self._answer)
        elif self._start.device == "cpu":
            self._answer(cap_bytes, self._limit_data(cap_bytes), 0, None)
        else:  # it is kept for torch; what uses the GPU without it is held to nothing
            self._answer(cap_bytes, cap_bytes, 0, None, enforced=False)

    def _answer(
        self, asked_bytes: int, cap_bytes: int, freed_bytes: int, held_bytes: int | None, *, enforced: bool = True
    ) -> None:
        self._cap_bytes = cap_bytes
        facts = sys.modules.get("vrampool.training.runtime")
        if facts is not None:
            facts.update(cap_bytes=cap_bytes)
        self._send(
            ChildFrame.RECAPPED,
            asked_bytes=asked_bytes,
            cap_bytes=cap_bytes,
            freed_bytes=freed_bytes,
            held_bytes=held_bytes,
            enforced=enforced,
        )

    def stay(self) -> None:
        """Take the worker's no to a wish to grow."""
        if self._torch is not None:
            self._torch.stay()

    def ask_if_short(self) -> None:
        """Ask for more if the cap is nearly reached. Called by the thread that trains, between two steps."""
        if self._torch is not None:
            self._torch.ask_if_short()

    def note_oom_handled(self, count: int) -> None:
        """Take note of out-of-memory errors that a helper of ours caught on purpose."""
        if self._torch is None:
            self._ooms_handled += count
            return
        self._ooms_handled = self._torch.note_ooms_handled(self._ooms_handled, count)

    def sample(self) -> MemorySample:
        """Return what is held now, for the outcome."""
        fields = {"cap_bytes": self._cap_bytes} if self._torch is None else self._torch.sample().to_json()
        return MemorySample.from_json({**fields, "num_ooms_handled": self._ooms_handled})


def seed_everything(seed: int) -> None:
    """Seed `random`, NumPy and torch: those that are loaded now, the others at the end of their import.

    What a trial draws then depends on its number alone, not on the process it happens to run in. `VRAMPOOL_SEED` in the
    submission's `env=` gives another seed, or "off".
    """
    text = os.environ.get("VRAMPOOL_SEED", "")
    if text.lower() == "off":
        return
    if text.isdigit():
        seed = int(text)
    after_import("random", lambda: sys.modules["random"].seed(seed))
    after_import("numpy", lambda: sys.modules["numpy"].random.seed(seed % 2**32))
    # For a GPU that is not in use yet torch keeps the seed until it is: no context is created.
    after_import("torch", lambda: sys.modules["torch"].manual_seed(seed % 2**63))
