"""What the process of a trial knows about itself, for the helpers beside this module.

The child calls `install` when it is handed its trial, before any user code runs, and `update` when its lease changes.
Outside a pool `current()` is None and every helper works without it. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger("vrampool.training")


def _ignore(_: Any) -> None:
    """Stand in for a hook that nobody has set."""


@dataclass(frozen=True)
class TrialRuntime:
    """Facts of the running trial, and where its helpers report to. Hooks are called on the thread that trains."""

    device: str = "cpu"  #: "cpu" or "cuda"
    lease_bytes: int = 0  #: what the worker granted, the context of the device included
    cap_bytes: int | None = None  #: cuda: what torch's allocator may hold; cpu: limit of the process; None: no cap
    seed: int | None = None  #: of this trial
    slots: int = 1  #: trials that may run at once on this host; host memory and cores are shared among them
    count_steps: Callable[[int], None] = _ignore  #: optimizer steps taken since the last call
    note_oom_handled: Callable[[int], None] = _ignore  #: out-of-memory errors that a helper caught on purpose
    note_hint: Callable[[str], None] = _ignore  #: one sentence for the study's report


_current: TrialRuntime | None = None
_hints_given: set[str] = set()


def current() -> TrialRuntime | None:
    """Return the facts of the running trial, or None outside a pool."""
    return _current


def install(facts: TrialRuntime | None) -> None:
    """Set the facts of the trial this process runs (None: forget them), and attach the observers if torch is loaded."""
    global _current
    from vrampool.training import counting

    counting.unwatch_optimizers()
    _hints_given.clear()
    _current = facts
    attach()


def update(**changes: Any) -> None:
    """Replace some facts, for example `lease_bytes` and `cap_bytes` after the lease shrank. Safe from any thread."""
    global _current
    if _current is not None:
        _current = dataclasses.replace(_current, **changes)


def attach() -> bool:
    """Watch torch's optimizers and data loaders, if torch is loaded by now. May be called again; True when attached.

    The child calls it once more after it has imported the objective, which may be what imports torch.
    """
    if _current is None or sys.modules.get("torch") is None:
        return False
    # Here and not at the top: both import this module.
    from vrampool.training import counting, shapes

    counting.watch_optimizers()
    shapes.watch_loaders()
    return True


def count_steps(steps: int) -> None:
    """Report optimizer steps to the pool; the end of a trial's exclusive use of its device rests on them."""
    if _current is not None:
        _current.count_steps(steps)


def note_oom_handled(count: int = 1) -> None:
    """Report out-of-memory errors that a helper caught on purpose: the pool does not retry the trial for them."""
    if _current is not None:
        _current.note_oom_handled(count)


def note_hint(kind: str, text: str) -> None:
    """Give the study's report one sentence of advice, once for each kind; outside a pool it is logged."""
    if kind in _hints_given:
        return
    _hints_given.add(kind)
    if _current is not None:
        _current.note_hint(text)
    else:
        _log.warning(text)
