"""Starting the process of a child, with the four ends the worker keeps of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vrampool.messages import CHILD_MODULE


class Launched(NamedTuple):
    """A process that was started, and what connects the worker with it."""

    process: subprocess.Popen[bytes]  #: becomes the keeper
    frames: socket.socket
    control: socket.socket
    output_fd: int  #: its stdout and stderr
    pidfd: int  #: readable when the process has ended


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
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        frames, their_frames = _socketpair(ours, theirs)
        control, their_control = _socketpair(ours, theirs)
        output, their_output = os.pipe2(os.O_CLOEXEC)
        ours.callback(os.close, output)
        theirs.callback(os.close, their_output)
        fds = (their_frames.fileno(), their_control.fileno())
        # -P: a file of the worker's directory must not stand in for a module of the standard library.
        command = [python, "-P", "-m", CHILD_MODULE, *map(str, fds), str(os.getpid()), scratch, ",".join(modules)]
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=their_output,
            stderr=their_output,
            pass_fds=fds,
            process_group=0,  # Ctrl-C at the worker's terminal is the worker's
        )
        ours.callback(_end, process)
        life = os.pidfd_open(process.pid)
        ours.pop_all()  # all is well: from here on the child closes them itself
    return Launched(process, frames, control, output, life)


def _socketpair(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    mine, other = socket.socketpair()
    ours.callback(mine.close)
    theirs.callback(other.close)
    return mine, other


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
