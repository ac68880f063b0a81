"""Calls right after a module has been imported, for modules that may never be.

An objective imports torch when it likes. What must be in place before its first use of the GPU is put there at the end
of torch's own import: the import statement has not returned yet, so no code of the user's can have used torch. All ways
to import a module (``import``, importlib, lazy loaders) end in the loader's `exec_module`, which is where this waits.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, call: Callable[[], None]) -> None:
    """Make a call once `name` is imported: now if it is, else at the end of its import.

    A call that raises is told on stderr and breaks nobody's import.
    """
    if name in sys.modules:
        _run(call)
        return
    _finder.waiting.setdefault(name, []).append(call)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _run(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        traceback.print_exc()


def _without_collections(execute: Callable[[], None]) -> None:
    """Import without the collector, which would find nothing in modules that stay: torch is there a fifth sooner."""
    collects = gc.isenabled()
    gc.disable()
    try:
        execute()
    finally:
        if collects:
            gc.enable()


class _Finder:
    """Lets the other finders find, and hangs a call onto the loader of what was waited for."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], None]]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._hang_onto(spec, name)
                return spec
        return None

    def _hang_onto(self, spec: ModuleSpec, name: str) -> None:
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module") or not hasattr(loader, "__dict__"):
            return
        execute = loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            _without_collections(lambda: execute(module))
            for call in self.waiting.pop(name, ()):
                _run(call)

        # On this loader alone, which is this module's; its class and its reprs stay what they are.
        setattr(loader, "exec_module", execute_and_call)  # noqa: B010


_finder = _Finder()
