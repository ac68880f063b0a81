"""Starting the process of a child, with the four ends the worker keeps of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from vrampool.messages import CHILD_MODULE


class KeeperProcess(Protocol):
    """A keeper as a child process of this one: `subprocess.Popen`, or one that was adopted."""

    pid: int

    def poll(self) -> int | None:
        """Wait for it without blocking; None while it lives."""


class Launched(NamedTuple):
    """A process that was started, and what connects the worker with it."""

    process: KeeperProcess  #: becomes the keeper
    frames: socket.socket
    control: socket.socket
    output_fd: int  #: its stdout and stderr
    pidfd: int  #: readable when the process has ended


class Pipes:
    """The ends of a child's connections: ours are kept once it is launched, theirs are closed in any case."""

    def __enter__(self) -> Pipes:
        self._theirs = contextlib.ExitStack()
        self._ours = contextlib.ExitStack()
        try:
            self._frames, frames = self._socketpair()
            self._control, control = self._socketpair()
            self._output, output = os.pipe2(os.O_CLOEXEC)
        except BaseException:
            self.__exit__()
            raise
        self._ours.callback(os.close, self._output)
        self._theirs.callback(os.close, output)
        self.their_fds = [frames.fileno(), control.fileno(), output]  #: frames, control, output
        return self

    def __exit__(self, *error: object) -> None:
        self._theirs.close()
        self._ours.close()

    def launched(self, process: KeeperProcess, pidfd: int) -> Launched:
        """All is well: from here on the child closes our ends itself."""
        self._ours.pop_all()
        return Launched(process, self._frames, self._control, self._output, pidfd)

    def _socketpair(self) -> tuple[socket.socket, socket.socket]:
        mine, other = socket.socketpair()
        self._ours.callback(mine.close)
        self._theirs.callback(other.close)
        return mine, other


def scratch_folder(state_dir: Path) -> Path:
    """Return where the scratch directories of this host's children are made; each is named WORKER-NUMBER.

    Hosts may share a state directory, and a pid says nothing about another host's worker.
    """
    return state_dir / "scratch" / socket.gethostname()


def stale_scratch(state_dir: Path) -> Iterator[Path]:
    """Yield what keepers that were killed have left behind: scratch directories of workers that are no more."""
    folder = scratch_folder(state_dir)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        worker = path.name.partition("-")[0]
        if worker.isdigit() and not Path("/proc", worker).exists():
            yield path


def clear_scratch(state_dir: Path) -> None:
    """Remove scratch directories that nobody uses any more."""
    for path in stale_scratch(state_dir):
        shutil.rmtree(path, ignore_errors=True)


def launch(environment: Mapping[str, str], modules: Sequence[str], scratch: str, python: str) -> Launched:
    """Start the process.

    Raises:
        OSError: no process, descriptor or memory is left; nothing stays behind.
    """
    with Pipes() as pipes:
        frames_fd, control_fd, output_fd = pipes.their_fds
        # -P: a file of the worker's directory must not stand in for a module of the standard library.
        command = [python, "-P", "-m", CHILD_MODULE, str(frames_fd), str(control_fd)]
        process = subprocess.Popen(
            [*command, str(os.getpid()), scratch, ",".join(modules)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output_fd,
            stderr=output_fd,
            pass_fds=(frames_fd, control_fd),
            process_group=0,  # Ctrl-C at the worker's terminal is the worker's
        )
        try:
            life = os.pidfd_open(process.pid)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return pipes.launched(process, life)
