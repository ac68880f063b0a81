"""Large batches in small pieces: the search chooses the effective batch, memory holds only a part of it at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from vrampool.errors import InputError
from vrampool.training import runtime, shapes
from vrampool.training.precision import MixedPrecision

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@dataclass(frozen=True)
class EffectiveBatch:
    """A batch size of the search, and the pieces that it is trained in: `size == physical_size * steps`."""

    size: int  #: samples for each optimizer step: what the search chose
    physical_size: int  #: samples in memory at a time; give it to the data loader
    steps: int  #: pieces for each optimizer step; give it to `GradientAccumulator`

    def split(self, *tensors: Any) -> Iterator[tuple[Any, ...]]:
        """Cut a batch that was loaded whole into its pieces, along dimension 0; the last piece may be shorter."""
        for start in range(0, len(tensors[0]), self.physical_size):
            yield tuple(tensor[start : start + self.physical_size] for tensor in tensors)


def effective_batch(trial: Any, sizes: Sequence[int], *, max_physical: int, name: str = "batch_size") -> EffectiveBatch:
    """Search the effective batch size alone; how it is cut into pieces follows from it.

    A size up to `max_physical` stays whole. A larger one is cut into equal pieces, as large as `max_physical` allows.

    Args:
        trial: An Optuna trial; gets the categorical parameter `name`.
        sizes: Effective batch sizes to choose from.
        max_physical: Most samples in memory at a time. It bounds the peak of every trial, whatever size it gets.
        name: Name of the parameter.

    Raises:
        InputError: a size cannot be cut into equal pieces of at least half of `max_physical`.
    """
    if max_physical < 1 or not sizes or any(size < 1 for size in sizes):
        raise InputError(f"batch sizes and max_physical must be 1 or more, not {list(sizes)} and {max_physical}")
    # All of them, so that a bad list fails in the first trial and not in the one that draws it.
    pieces = {size: _pieces(size, max_physical) for size in sizes}
    return pieces[trial.suggest_categorical(name, list(sizes))]


def _pieces(size: int, max_physical: int) -> EffectiveBatch:
    fewest = -(-size // max_physical)
    for steps in range(fewest, 2 * fewest + 1):
        if size % steps == 0:
            return EffectiveBatch(size, size // steps, steps)
    near = max(1, round(size / max_physical)) * max_physical
    raise InputError(
        f"batch size {size} has no equal pieces of {max_physical // 2} to {max_physical} samples: use {near} instead"
    )


class GradientAccumulator:
    """Accumulates gradients over `steps` pieces, then steps: the gradients of the large batch, within rounding.

    ::

        accumulator = training.GradientAccumulator(optimizer, batch.steps, clip_norm=1.0)
        for x, y in accumulator.batches(loader):        # steps for an incomplete last group too
            loss = functional.cross_entropy(model(x), y)
            accumulator.backward(loss, len(x))

    Each sample of a group counts alike, also when pieces differ in size; so a short last piece or an incomplete last
    group gives the gradients of one batch of all its samples. What this cannot mend: layers that look across a batch
    (batch normalisation) see the pieces.

    Attributes:
        precision: The `MixedPrecision` in use; its `steps`, `skipped_steps` and `grad_norm` tell how it went.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        steps: int,
        *,
        precision: MixedPrecision | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        clip_norm: float | None = None,
        clip_value: float | None = None,
    ) -> None:
        """Drop the optimizer's present gradients and begin a group.

        Args:
            optimizer: Steps after each full group.
            steps: Pieces of a full group.
            precision: Mixed precision of this trial; None: float32, where a loss that is not finite is an error.
            reduction: How the loss is made of its samples: their mean, or their sum.
            clip_norm: Largest norm of the group's gradients, applied when they are complete.
            clip_value: Largest absolute value of each, applied after `clip_norm`.
        """
        if steps < 1:
            raise InputError(f"steps must be 1 or more, not {steps}")
        self.precision = precision or MixedPrecision("float32", "cpu", "fail", 1)
        self._optimizer = optimizer
        self._steps = steps
        self._reduction = reduction
        self._clip_norm = clip_norm
        self._clip_value = clip_value
        self._begin()
        optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: torch.Tensor, samples: int) -> bool:
        """Add a piece's gradients; after the last one of a group, step.

        Args:
            loss: Scalar, the mean (or sum) over the piece.
            samples: What the mean was taken of: the piece's samples; for a language model its tokens.

        Returns:
            True when the optimizer stepped; then is the time for a scheduler's step.

        Raises:
            optuna.TrialPruned, FloatingPointError: as `MixedPrecision.step`.
        """
        if samples < 1:
            raise InputError(f"a piece must have 1 sample or more, not {samples}")
        if self._pieces == 0:
            self._expected = samples * self._steps
        # Scaled for the expected total at once, which keeps float16 in its range; `_finish` corrects for the true one.
        factor = samples / self._expected if self._reduction == "mean" else 1.0
        self.precision.backward(loss, factor=factor)
        self._pieces += 1
        self._samples += samples
        return self._finish() if self._pieces == self._steps else False

    def flush(self) -> bool:
        """Step for a group that is not full, at the end of an epoch; return whether the optimizer stepped."""
        return self._finish() if self._pieces else False

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """Pass on the pieces of one epoch, and flush after the last."""
        watch = shapes.ShapeWatch()
        for count, batch in enumerate(loader):
            if count < shapes.LOOK_AT and (hint := watch.see(batch)):
                runtime.note_hint("shapes", hint)
            yield batch
        self.flush()

    def _begin(self) -> None:
        self._pieces = 0
        self._samples = 0
        self._expected = 0

    def _finish(self) -> bool:
        rescale = self._expected / self._samples if self._reduction == "mean" else 1.0
        self._begin()
        return self.precision.step(
            self._optimizer, rescale=rescale, clip_norm=self._clip_norm, clip_value=self._clip_value
        )
