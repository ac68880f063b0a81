"""The process that trials are forked from: `--start-method forkserver`. Started by a worker; nobody else should.

It imports what trials need, once, and then does nothing but fork: a trial is there after some 10 ms instead of the
seconds that importing torch takes. Told of more that trials import, it imports that too. It must stay as good as new:
it never touches a GPU and has no second thread, and says so each time before it takes an order to fork, for a fork of a
process that has either is broken in ways that show late.

Each trial gets a keeper of its own, as a spawned one does. The fork in between ends at once, so that the keeper comes
up to the worker, which is a subreaper: the worker is its parent, waits for it, and both die by the same rules as if it
had been spawned. Only the environment is the server's, which is that of any child of this worker.
"""

# Not pathlib here: keepers are forked with this imported.
# ruff: noqa: PTH115, PTH208, SIM115

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
import traceback

from vrampool_worker import process_tree
from vrampool_worker.child import keeper, process

#: A keeper that is not handed to the worker by then has lost it.
_HANDED_S = 5.0


def serve(arguments: list[str]) -> None:
    """Import, say whether trials may be forked from here, and fork them until the worker ends.

    Args:
        arguments: Descriptor of the socket to the worker, the worker's process id, modules to import with commas.
    """
    fd, worker, modules = int(arguments[0]), int(arguments[1]), arguments[2]
    process_tree.die_with_parent(signal.SIGKILL, worker)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = socket.socket(fileno=fd)
    link.set_inheritable(False)
    fit = _prepare(link, [name for name in modules.split(",") if name])
    process_tree.set_name("vrampool-fork")
    while fit:
        data, fds, _, _ = socket.recv_fds(link, 8192, 3, socket.MSG_CMSG_CLOEXEC)
        if not data:
            break
        order = json.loads(data)
        if "import" in order:
            fit = _prepare(link, order["import"])
        else:
            _fork(link, order, fds, worker)


def _prepare(link: socket.socket, modules: list[str]) -> bool:
    """Import modules, and say whether trials may be forked from here; also return that."""
    began_s = time.perf_counter()
    process.preload(modules, lambda name: _say(link, {"importing": name}))
    process.import_the_rest()
    gc.collect()
    gc.freeze()  # or the first collection of each trial would write to, and so copy, every page of all modules
    refusal = why_not()
    _say(link, {"ready": not refusal, "why": refusal, "preload_s": round(time.perf_counter() - began_s, 4)})
    return not refusal


def why_not() -> str:
    """Say why no trial may be forked from this process; empty when all is well."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        # OpenBLAS starts threads when NumPy is imported, and ends them itself before a fork: those do no harm.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"importing has started {threads - 1} threads, which a fork would lose"
    return _open_card()


def _open_card() -> str:
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # the listing's own
            continue
        if target.startswith("/dev/nvidia"):
            return f"importing has opened {target}: CUDA does not survive a fork"
    return ""


def _fork(link: socket.socket, order: dict[str, str], fds: list[int], worker: int) -> None:
    """Fork a keeper with its trial, and tell the worker its process id; in the trial this does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid:
            os.write(write_fd, b"%d" % pid)
            os._exit(0)
        try:
            link.close()
            os.close(read_fd)
            os.close(write_fd)
            _run_trial(order["scratch"], fds, worker)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)  # never up into the server's loop
    os.close(write_fd)
    for fd in fds:
        os.close(fd)
    os.waitpid(between, 0)  # from here on the worker is the keeper's parent
    pid = int(os.read(read_fd, 32) or 0)
    os.close(read_fd)
    _say(link, {"pid": pid})


def _run_trial(scratch: str, fds: list[int], worker: int) -> None:
    frames_fd, control_fd, output_fd = fds
    end_s = time.monotonic() + _HANDED_S
    while os.getppid() != worker:
        if time.monotonic() > end_s:
            os._exit(1)
        time.sleep(0.0002)
    os.setpgid(0, 0)  # Ctrl-C at the worker's terminal is the worker's
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output_fd, 1), (output_fd, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output_fd)
    # The server's own streams know what its descriptors were: a file that can be sought in, or a terminal.
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False)  # type: ignore[misc]
    keeper.fork_trial(control_fd, frames_fd, scratch, worker)
    _reseed()
    process.TrialProcess(frames_fd, scratch, []).run()


def _reseed() -> None:
    """Give this process random numbers of its own: all forks have the server's state. `random` does so by itself."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(int.from_bytes(os.urandom(8)) % 2**63)


def _say(link: socket.socket, message: dict[str, object]) -> None:
    link.send(json.dumps(message).encode())


if __name__ == "__main__":
    serve(sys.argv[1:])
