"""What the helpers of `vrampool.training` learn of the trial, and what they tell the worker through its child."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from vrampool.messages import ChildFrame, ChildStart
from vrampool_worker.child.import_hooks import after_import

_RUNTIME = "vrampool.training.runtime"
#: Steps that are told at once: the first says that training began, the twentieth ends the exclusive use of a device.
_TOLD_AT_ONCE = (1, 20)
_PAUSE_S = 1.0
#: After each of the first steps, and then after a step this often, it is looked at whether the cap is nearly reached.
_FIRST_STEPS = 20
_LOOK_S = 0.05
BENCHMARK_HINT = (
    "torch.backends.cudnn.benchmark is on: trying algorithms takes memory for their workspaces (+41 % of the peak in "
    "one run) and time for each new shape; leave it off during the search"
)


class TrainingLink:
    """Installs the facts of the trial where the helpers look for them.

    The package is not imported for it: that is left to the objective, or to the moment at which torch is loaded.
    """

    def __init__(
        self,
        start: ChildStart,
        send: Callable[..., None],
        note_oom_handled: Callable[[int], None],
        ask_if_short: Callable[[], None],
    ) -> None:
        self._start = start
        self._send = send
        self._note_oom_handled = note_oom_handled
        self._ask_if_short = ask_if_short
        self._looked_at_s = 0.0
        self._steps = 0
        self._told_at_s = 0.0

    def begin(self) -> None:
        after_import(_RUNTIME, self._install)
        after_import("torch", self._on_torch)

    def _install(self) -> None:
        runtime: Any = sys.modules[_RUNTIME]
        start = self._start
        runtime.install(
            runtime.TrialRuntime(
                device=start.device,
                lease_bytes=start.lease_bytes,
                cap_bytes=start.cap_bytes,
                seed=start.seed,
                slots=start.slots,
                count_steps=self._count_steps,
                note_oom_handled=self._note_oom_handled,
                note_hint=lambda text: self._send(ChildFrame.HINT, text=text[:500]),
            )
        )

    def _on_torch(self) -> None:
        from vrampool.training import runtime
        from vrampool.training.defaults import apply_settings

        apply_settings()
        runtime.attach()

    def finish(self) -> None:
        """Look, at the trial's end, for what the objective set against the advice of the pool."""
        torch = sys.modules.get("torch")
        if self._start.device != "cuda" or torch is None:
            return
        if getattr(torch.backends.cudnn, "benchmark", False):
            self._send(ChildFrame.HINT, text=BENCHMARK_HINT)

    def _count_steps(self, steps: int) -> None:
        before, self._steps = self._steps, self._steps + steps
        now_s = time.monotonic()
        crossed = any(before < mark <= self._steps for mark in _TOLD_AT_ONCE)
        if crossed or now_s - self._told_at_s >= _PAUSE_S:
            self._told_at_s = now_s
            self._send(ChildFrame.STEP, steps=self._steps)
        # The first steps take most of what a trial will ever take; later a look in between costs nothing.
        if self._steps <= _FIRST_STEPS or now_s - self._looked_at_s >= _LOOK_S:
            self._looked_at_s = now_s
            self._ask_if_short()
