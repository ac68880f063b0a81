"""Runs the embedded server and ends it with its owner. Started by its path with ``python -I -S``: nothing but stdlib.

    embedded_watch.py OWNER_PID BINARY CONFIG_FILE

Standard input is a pipe of which the owner alone holds the other end. The end of that pipe, the end of the owner
(which a forked child of it may outlive, pipe and all), or a SIGTERM stops the server. Whoever kills this process
with SIGKILL ends the server too: the kernel tells it.
"""

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
#: Time to write what is left to disk; the server has no other reason to take long.
_STOP_S = 10.0


def main(owner_pid: int, binary: str, config: str) -> int:
    """Run the server until it ends or the owner is gone; return its exit code."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGTERM, lambda *_: os.write(wake_write, b"."))
    server = _start(binary, config)
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    poll.register(os.pidfd_open(server), select.POLLIN)
    try:
        poll.register(os.pidfd_open(owner_pid), select.POLLIN)
    except OSError:  # gone already; the pipe says so too
        pass
    poll.poll()
    os.kill(server, signal.SIGTERM)  # it is our child and not reaped yet: its pid is still its own
    last = select.poll()
    last.register(os.pidfd_open(server), select.POLLIN)
    if not last.poll(_STOP_S * 1000):
        os.kill(server, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])


def _start(binary: str, config: str) -> int:
    watcher = os.getpid()
    server = os.fork()
    if server:
        return server
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != watcher:
            os._exit(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.execv(binary, [binary, config])  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"cannot run {binary}: {error}", file=sys.stderr, flush=True)
    os._exit(127)


if __name__ == "__main__":
    code = main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
    sys.exit(code if code >= 0 else 128 - code)
