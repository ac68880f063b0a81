"""A stand-in for `nvidia-cuda-mps-control`, as far as its documentation and one card have shown how it behaves.

``install(folder)`` puts it into a folder for PATH. Its daemon goes into the background by two forks and has a server
below it, as NVIDIA's. A process is its client when it has a file of its process id in the folder ``clients`` beside the
pipes (`be_client`): what is tested is what the pool makes of that, never CUDA.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

NAME = "nvidia-cuda-mps-control"


def install(folder: Path) -> Path:
    """Put the program into a folder, and return that folder."""
    program = folder / NAME
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {Path(__file__)} "$@"\n')
    program.chmod(0o755)
    return folder


def be_client(env: Mapping[str, str] = os.environ) -> bool:
    """Make this process a client, if its variables say so."""
    pipes = env.get("CUDA_MPS_PIPE_DIRECTORY")
    if not pipes or not Path(pipes, "pid").exists():
        return False
    clients = Path(pipes, "clients")
    clients.mkdir(exist_ok=True)
    (clients / str(os.getpid())).touch()
    return True


def _daemon(pipes: Path) -> None:
    import signal
    import socket

    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    server = os.fork()
    if server == 0:
        signal.pause()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(pipes / "control"))  # fails where the path is too long, as NVIDIA's does
    listener.listen()
    (pipes / "pid").write_text(f"{os.getpid()} {server}")
    (pipes / "card").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    while True:
        connection, _ = listener.accept()
        with connection:
            words = connection.recv(256).decode().split()
            if words[:1] == ["quit"]:
                os.kill(server, signal.SIGTERM)
                connection.sendall(b"bye\n")
                os._exit(0)
            answer = f"{server}\n"
            if words[:1] == ["get_client_list"]:
                clients = pipes / "clients"
                answer = "".join(f"{path.name}\n" for path in clients.iterdir()) if clients.is_dir() else ""
            connection.sendall(answer.encode() or b"\n")


def main() -> int:
    import socket
    import time

    pipes = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    if sys.argv[1:] == ["-d"]:
        if os.environ.get("FAKE_MPS_FAILS"):
            print("An instance of this daemon is already running", file=sys.stderr)
            return 1
        if os.fork() == 0:
            _daemon(pipes)
        end_s = time.monotonic() + 5
        while not (pipes / "card").exists() and time.monotonic() < end_s:
            time.sleep(0.005)
        return 0
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(str(pipes / "control"))
        except OSError:
            print("Cannot find MPS control daemon process", file=sys.stderr)
            return 1
        link.sendall(sys.stdin.read().encode())
        print(link.recv(65536).decode(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
