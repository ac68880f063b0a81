"""The life of a trial's process: get ready, wait for the trial, run it, say how it ended, leave.

READY is told as soon as the modules asked for are imported; what only the trial itself needs is imported between that
and the trial's arrival (`trial_run`), so that neither waits for the other.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import types
from typing import NoReturn, TextIO

from vrampool import framing

#: Threads and atexit handlers of the objective have so long after its end; then the process goes anyway.
LEAVE_S = 10.0


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
        preload(self._preload)
        ready = {"t": "ready", "pid": os.getpid(), "preload_s": round(time.perf_counter() - began_s, 4)}
        os.write(self._frames_fd, framing.encode(ready))

        import_the_rest()
        from vrampool_worker.child.trial_run import TrialRun

        TrialRun(self._frames_fd, self._scratch).run()
        _leave()


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


def preload(names: list[str]) -> None:
    """Import modules as far as they are installed; what fails is printed: an objective that needs it meets it again.

    Modules stay, so the collector finds nothing among them: without it torch is there a fifth sooner.
    """
    if not names:
        return
    import gc
    import importlib.util

    gc.disable()
    try:
        for name in names:
            try:
                if importlib.util.find_spec(name.partition(".")[0]) is not None:
                    importlib.import_module(name)
            except Exception:  # the objective may never need it, and meets the same error if it does
                _print_error()
    finally:
        gc.freeze()  # nor need it look at them again and again while the objective runs
        gc.enable()


def import_the_rest() -> None:
    """Import what the trial itself needs, and what it will need beside what is imported already.

    Each trial would do so otherwise, after it has come: 50 ms where torch is imported.
    """
    import vrampool_worker.child.trial_run  # noqa: F401

    if "torch" in sys.modules:
        import vrampool.training
        import vrampool.training.cleaning  # noqa: F401
    if "numpy" in sys.modules:
        import numpy.random  # noqa: F401  numpy itself does not, and it is seeded


def _leave() -> NoReturn:
    """End the process: what the interpreter would do first, but not its own slow shutdown.

    With torch loaded that takes 0.8 s, during which the memory of the device stays taken; this way it is back in 0.1 s.
    """
    import threading

    watchdog = threading.Timer(LEAVE_S, os._exit, args=(0,))
    watchdog.daemon = True
    for step in (watchdog.start, _clean_torch, getattr(threading, "_shutdown", None), _run_exit_handlers):
        try:
            if step is not None:
                step()
        except BaseException:
            _print_error()
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    os._exit(0)


def _clean_torch() -> None:
    if "torch" in sys.modules:
        from vrampool.training.cleaning import clean_up

        clean_up()


def _run_exit_handlers() -> None:
    import atexit

    atexit._run_exitfuncs()


def _print_error() -> None:
    import traceback

    traceback.print_exc()


def _flush(stream: TextIO) -> None:
    try:
        stream.flush()
    except (OSError, ValueError):  # closed by the objective
        pass
