"""Notices input shapes that vary from step to step, which make peaks larger and harder to predict."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from vrampool.training import runtime

#: Batches looked at in a process; shapes that vary do so early.
LOOK_AT = 500

Shapes = tuple[tuple[int, ...], ...]


class ShapeWatch:
    """Remembers the shapes of one source of batches. A short last batch is no variation."""

    def __init__(self) -> None:
        self._kinds: dict[Shapes, None] = {}
        self._batches = 0

    def see(self, batch: Any) -> str | None:
        """Take note of a batch; return a hint when shapes are found to vary, else None.

        Args:
            batch: Tensors or arrays, also in lists, tuples and mappings.
        """
        found = tuple(_shapes(batch))
        if not found:
            return None
        self._batches += 1
        self._kinds[found] = None
        inner = {tuple(shape[1:] for shape in kind) for kind in self._kinds}
        outer = {tuple(shape[:1] for shape in kind) for kind in self._kinds}
        # Two sizes of dimension 0 are full batches and the short last one; a third is a sampler that varies them.
        if len(inner) < 2 and len(outer) < 3:
            return None
        seen = ", ".join(str(kind[0]) for kind in list(self._kinds)[:3])
        return (
            f"input shapes vary from step to step ({seen} in {self._batches} batches): pad them to one shape during "
            "the search, then peaks are smaller and alike, and kernels are chosen once"
        )


def _shapes(batch: Any, depth: int = 3) -> list[tuple[int, ...]]:
    shape = getattr(batch, "shape", None)
    if isinstance(shape, tuple):
        # A tensor without dimensions is a number, such as the loss weight of a batch.
        return [tuple(int(size) for size in shape)] if shape else []
    if depth == 0 or isinstance(batch, (str, bytes)):
        return []
    if isinstance(batch, Mapping):
        return [found for value in batch.values() for found in _shapes(value, depth - 1)]
    if isinstance(batch, (list, tuple)):
        return [found for value in batch for found in _shapes(value, depth - 1)]
    return []


class _LoaderWatch:
    """Looks at the first batches of torch's data loaders by wrapping their iterators' `__next__`, then steps aside."""

    def __init__(self, iterator_class: Any) -> None:
        self._class = iterator_class
        self._original = iterator_class.__next__
        self._left = LOOK_AT
        self._watches: weakref.WeakKeyDictionary[Any, ShapeWatch] = weakref.WeakKeyDictionary()
        watch = self

        def next_batch(iterator: Any) -> Any:
            batch = watch._original(iterator)
            watch.see(iterator, batch)
            return batch

        iterator_class.__next__ = next_batch

    def see(self, iterator: Any, batch: Any) -> None:
        self._left -= 1
        watch = self._watches.setdefault(iterator, ShapeWatch())
        hint = watch.see(batch)
        if hint is not None:
            runtime.note_hint("shapes", hint)
        if hint is not None or self._left <= 0:
            self.detach()

    def detach(self) -> None:
        self._class.__next__ = self._original


_loaders: _LoaderWatch | None = None


def watch_loaders() -> bool:
    """Look at the shapes that torch's data loaders give, once in a process. False if this torch has no such class."""
    global _loaders
    if _loaders is None:
        from torch.utils.data import dataloader

        # Not part of torch's public face: without it there is no hint, and nothing else is lost.
        iterator_class = getattr(dataloader, "_BaseDataLoaderIter", None)
        if iterator_class is None:
            return False
        _loaders = _LoaderWatch(iterator_class)
    return True


def unwatch_loaders() -> None:
    """Undo `watch_loaders`."""
    global _loaders
    if _loaders is not None:
        _loaders.detach()
    _loaders = None
