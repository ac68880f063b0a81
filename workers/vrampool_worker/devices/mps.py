"""A private MPS daemon for one card: NVIDIA's Multi-Process Service, through which trials run side by side on it.

The daemon belongs to the worker: its pipes lie in a folder of their own, with a short path (they are UNIX sockets,
whose paths end at 108 letters), it sees one card, and a guard ends it with the worker (`mps_guard`). Children become
clients by two variables; a third one holds each to its lease, in the driver, for the child's whole life. All three are
read when a process first uses CUDA, so a spare can take them at hand-over.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from vrampool_worker import process_tree
from vrampool_worker.children import orphans

_log = logging.getLogger("vrampool.worker")

PROGRAM = "nvidia-cuda-mps-control"
GUARD_MODULE = "vrampool_worker.mps_guard"
#: Longer than this, and the sockets' names below it may not fit.
LONGEST_FOLDER = 80
#: The daemon starts within 0.1 s on a H200; the control program answers in milliseconds.
START_S = 20.0
ASK_S = 5.0
_MIB = 1024**2


class MpsError(Exception):
    """Raised when the daemon cannot be started or does not answer; the text says why."""


def find_program(env: Mapping[str, str]) -> str | None:
    """Return the path of the control program; None where the driver's tools are not installed."""
    return shutil.which(PROGRAM, path=env.get("PATH"))


class MpsDaemon:
    """The daemon of one card.

    Args:
        device_id: UUID of the card or MIG instance.
        program: The control program.
        env: The worker's environment.
        parent: Where its folder is made; None: the temporary directory, which has a short path.
    """

    def __init__(self, device_id: str, program: str, env: Mapping[str, str], *, parent: Path | None = None) -> None:
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="vpm-", dir=parent or Path("/tmp")))  # noqa: S108
        if len(str(self._folder)) > LONGEST_FOLDER:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise MpsError(f"the path {self._folder} is too long for MPS's sockets")
        self._env = {**env, **self._variables(), "CUDA_VISIBLE_DEVICES": device_id}
        self._guard: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._since = 0

    def _variables(self) -> dict[str, str]:
        pipes, logs = self._folder / "p", self._folder / "l"
        for folder in (pipes, logs):
            folder.mkdir(mode=0o700, exist_ok=True)
        return {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}

    @property
    def guard_pid(self) -> int | None:
        return self._guard.pid if self._guard is not None else None

    def start(self) -> None:
        """Start the guard, which starts the daemon. In the main thread: it dies with the thread that starts it.

        Raises:
            MpsError: no process is left.
        """
        mine, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", GUARD_MODULE, str(theirs.fileno()), str(os.getpid())]
            try:
                self._guard = subprocess.Popen(
                    [*command, self._program, str(self._folder)],
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
            except OSError as error:
                mine.close()
                raise MpsError(f"the guard of the MPS daemon could not be started: {error}") from None
        orphans.of_this_process().keep(self._guard.pid)
        self._since = process_tree.started_at(self._guard.pid) or 0
        self._link = mine

    def await_start(self) -> None:
        """Wait until the daemon answers. Blocks: for a lane.

        Raises:
            MpsError: it does not.
        """
        assert self._link is not None
        self._link.settimeout(START_S)
        try:
            line = self._link.recv(4096).split(b"\n")[0]
            told = json.loads(line) if line else {"started": -1, "why": "its guard has ended"}
        except (OSError, ValueError) as error:
            raise MpsError(f"the MPS daemon did not start: {error}") from None
        if told.get("started") != 0:
            raise MpsError(f"{PROGRAM} -d failed ({told.get('why') or told.get('started')})")
        self.ask("get_server_list")
        self._start_server()

    def _start_server(self) -> None:
        """Start the server ahead: what it holds of the card would else look like something its first client left."""
        try:
            self.ask(f"start_server -uid {os.geteuid()}")
        except MpsError as error:
            _log.info("the MPS server starts with its first client: %s", error)

    def ask(self, order: str) -> list[str]:
        """Give the daemon an order and return the lines of its answer. Blocks: for a lane.

        Raises:
            MpsError: it does not answer.
        """
        try:
            done = subprocess.run(
                [self._program], input=f"{order}\n", text=True, env=self._env, capture_output=True, timeout=ASK_S
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise MpsError(f"{PROGRAM} does not answer: {error}") from None
        if done.returncode != 0:
            raise MpsError(f"{PROGRAM} refuses {order!r}: {(done.stderr or done.stdout).strip()[:200]}")
        return [line.strip() for line in done.stdout.splitlines() if line.strip()]

    def clients(self) -> set[int]:
        """Return the process ids of all clients. Blocks: for a lane.

        Raises:
            MpsError: the daemon does not answer.
        """
        found: set[int] = set()
        for server in self.ask("get_server_list"):
            if server.isdigit():
                found |= {int(line) for line in self.ask(f"get_client_list {server}") if line.isdigit()}
        return found

    def client_env(self, limit_bytes: int | None) -> dict[str, str]:
        """Return the variables that make a process a client.

        Args:
            limit_bytes: What the driver lets it have of the card, its context included; None: no limit.
        """
        variables = self._variables()
        if limit_bytes is not None:
            variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={max(1, limit_bytes // _MIB)}M"
        return variables

    @property
    def running(self) -> bool:
        """Say whether the guard lives, and so the daemon; without waiting."""
        return self._guard is not None and self._guard.poll() is None

    def sweep(self) -> bool:
        """End what a guard that was killed has left behind; True when nothing is left."""
        return orphans.of_this_process().sweep(self._since)

    def close(self, wait_s: float = 10.0) -> None:
        """End the daemon: asked first, killed after some seconds. Clients should be gone. May be called twice."""
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._guard is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(wait_s)
            if self._guard.poll() is None:
                self._guard.kill()
                self._guard.wait()
            orphans.of_this_process().forget(self._guard.pid)
            end_s = time.monotonic() + 2.0
            while not self.sweep() and time.monotonic() < end_s:
                time.sleep(0.01)
            self._guard = None
        shutil.rmtree(self._folder, ignore_errors=True)
