"""Counts optimizer steps, whoever takes them: a plain loop, Lightning, a Trainer, our accumulator."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from vrampool.training import runtime

if TYPE_CHECKING:
    import torch


class StepCounter:
    """Counts the steps of the busiest optimizer: two optimizers that step in turn make one step of training."""

    def __init__(self) -> None:
        self.steps = 0
        self._by_optimizer: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __call__(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of a step; torch calls this after each. A step that a GradScaler skips is none."""
        taken = self._by_optimizer.get(optimizer, 0) + 1
        self._by_optimizer[optimizer] = taken
        if taken > self.steps:
            self.steps = taken
            runtime.count_steps(1)


_counter: StepCounter | None = None
_handle: Any = None


def watch_optimizers() -> StepCounter:
    """Count the steps of all optimizers of this process from now on. A second call changes nothing."""
    global _counter, _handle
    if _counter is None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        _counter = StepCounter()
        _handle = register_optimizer_step_post_hook(_counter)
    return _counter


def unwatch_optimizers() -> None:
    """Stop counting. The next `watch_optimizers` starts from zero."""
    global _counter, _handle
    if _handle is not None:
        _handle.remove()
    _counter = _handle = None
