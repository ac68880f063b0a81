"""The end of a trial's process: what the interpreter would do first, but not its own slow shutdown.

With torch loaded that takes 0.8 s, during which the memory of the device stays taken; this way it is back in 0.1 s.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn, TextIO

#: Threads and atexit handlers of the objective have so long after its end; then the process goes anyway.
LEAVE_S = 10.0


def leave() -> NoReturn:
    """End the process."""
    import threading

    watchdog = threading.Timer(LEAVE_S, os._exit, args=(0,))
    watchdog.daemon = True
    for step in (watchdog.start, _clean_torch, getattr(threading, "_shutdown", None), _run_exit_handlers):
        try:
            if step is not None:
                step()
        except BaseException:
            print_error()
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    os._exit(0)


def let_torch_be() -> None:
    """Have torch undo at exit nothing that ends with the process: what its libraries have registered with each other.

    There are some 130 of them. In a process that was forked, undoing it writes to, and so copies, 26 MiB of pages, for
    40 ms.
    """
    import weakref

    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        alive = finalizer.peek()
        if alive is not None and getattr(alive[1], "__name__", "") == "_del_library":
            finalizer.atexit = False


def print_error() -> None:
    """Print the exception that is being handled; nothing here may end the trial's process before it is done."""
    import traceback

    traceback.print_exc()


def _clean_torch() -> None:
    if "torch" not in sys.modules:
        return
    from vrampool.training.cleaning import clean_up, end_loaders, initialized_cuda

    let_torch_be()  # the objective may have imported it itself
    if initialized_cuda() is not None:
        clean_up()
    else:  # no collection, which looks at all that torch consists of, for 65 ms: the host's memory is back in a moment
        end_loaders()


def _run_exit_handlers() -> None:
    import atexit

    atexit._run_exitfuncs()


def _flush(stream: TextIO) -> None:
    try:
        stream.flush()
    except (OSError, ValueError):  # closed by the objective
        pass
