"""The life of a trial's process: get ready, wait for the trial, run it, say how it ended, leave.

READY is told as soon as the modules asked for are imported; what only the trial itself needs is imported between that
and the trial's arrival (`trial_run`), so that neither waits for the other.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import types
from collections.abc import Callable
from typing import NoReturn

from vrampool import framing
from vrampool_worker.child import leaving


class TrialProcess:
    """Runs one trial in this process.

    Args:
        frames_fd: Socket to the worker.
        scratch: The trial's own directory, for it to make; removed by the keeper.
        preload: Modules to import ahead; those that are not installed are left out.
    """

    def __init__(self, frames_fd: int, scratch: str, preload: list[str]) -> None:
        os.set_inheritable(frames_fd, False)
        self._frames_fd = frames_fd
        self._scratch = scratch
        self._preload = preload

    def run(self) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever waits for the study
        _set_streams()
        _hide_main()
        began_s = time.perf_counter()
        preload(self._preload, self._tell_import)
        ready = {"t": "ready", "pid": os.getpid(), "preload_s": round(time.perf_counter() - began_s, 4)}
        os.write(self._frames_fd, framing.encode(ready))

        import_the_rest()
        from vrampool_worker.child.trial_run import TrialRun

        gc.freeze()  # nor need the collector look at all that again and again while the objective runs
        gc.enable()
        TrialRun(self._frames_fd, self._scratch).run()
        leaving.leave()

    def _tell_import(self, name: str) -> None:
        os.write(self._frames_fd, framing.encode({"t": "importing", "module": name, "pid": os.getpid()}))


def _set_streams() -> None:
    """Write each line at once: what a killed trial printed last is what one wants to read."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


_main: list[types.ModuleType] = []


def _hide_main() -> None:
    """Put an empty `__main__` in place of ours, which processes that the objective spawns would import otherwise."""
    _main.append(sys.modules["__main__"])  # its functions are still running, and live with their module
    sys.modules["__main__"] = types.ModuleType("__main__")


def preload(names: list[str], tell: Callable[[str], None]) -> None:
    """Import modules as far as they are installed; what fails is printed: an objective that needs it meets it again.

    Each is told of before it is imported, so that one that hangs is known by its name. Modules stay, so the collector
    finds nothing among them: without it torch is there a fifth sooner.
    """
    if not names:
        return
    import importlib.util

    collects = gc.isenabled()
    gc.disable()
    try:
        for name in names:
            try:
                if importlib.util.find_spec(name.partition(".")[0]) is not None:
                    tell(name)
                    importlib.import_module(name)
            except Exception:  # the objective may never need it, and meets the same error if it does
                leaving.print_error()
    finally:
        if collects:
            gc.enable()


def import_the_rest() -> None:
    """Import what the trial itself needs, and what it will need beside what is imported already.

    Each trial would do so otherwise, after it has come: 50 ms where torch is imported.
    """
    import vrampool_worker.child.trial_run  # noqa: F401

    if "torch" in sys.modules:
        import vrampool.training
        import vrampool.training.cleaning  # noqa: F401

        leaving.let_torch_be()
    if "numpy" in sys.modules:
        import numpy.random  # noqa: F401  numpy itself does not, and it is seeded
