"""Pipes of MPS daemons that nobody uses: found, and none with a sign of life."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from vrampool_worker import mps_leftovers
from vrampool_worker.mps_leftovers import AGE_S, stale_mps_folders

LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print(1, flush=True)
input()
"""


def make(parent: Path, name: str = "vpm-abc", *, age_s: float = 2 * AGE_S) -> Path:
    """Make the folder of a daemon, as old as that."""
    folder = parent / name
    (folder / "p").mkdir(parents=True)
    (folder / "l").mkdir()
    (folder / "p" / "control_lock").touch()
    grow_old(folder, age_s)
    return folder


def grow_old(folder: Path, age_s: float = 2 * AGE_S) -> None:
    for path in (*folder.glob("*/*"), *folder.glob("*"), folder):
        os.utime(path, (time.time() - age_s,) * 2, follow_symlinks=False)


def test_one_that_nobody_uses_is_found(tmp_path):
    folder = make(tmp_path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "p" / "control"))  # what stays of a socket whose daemon was killed
    grow_old(folder)
    assert list(stale_mps_folders(tmp_path)) == [folder]


def test_a_young_one_and_what_is_not_ours_are_left_alone(tmp_path):
    make(tmp_path, age_s=AGE_S / 2)
    make(tmp_path, "other-abc")
    (tmp_path / "vpm-file").touch()
    (tmp_path / "vpm-link").symlink_to(make(tmp_path, "elsewhere"))
    os.utime(tmp_path / "vpm-file", (0, 0))
    assert list(stale_mps_folders(tmp_path)) == []


@pytest.mark.parametrize("where", ["arguments", "environment"])
def test_one_that_a_process_names_is_in_use(tmp_path, where):
    """Its guard does in its arguments, daemon and clients in their environment."""
    folder = make(tmp_path)
    arguments = [str(folder)] if where == "arguments" else []
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "p")} if where == "environment" else {}
    command = [sys.executable, "-c", "print(1, flush=True); input()", *arguments]
    with subprocess.Popen(command, env={**os.environ, **variables}, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline()
        assert list(stale_mps_folders(tmp_path)) == []
        process.communicate(b"\n")
    assert list(stale_mps_folders(tmp_path)) == [folder]


@pytest.mark.parametrize("sign", ["socket", "flock", "lockf"])
def test_one_with_a_sign_of_life_is_in_use_though_no_process_of_it_is_seen(tmp_path, sign, monkeypatch):
    """As that of a container which shares /tmp."""
    monkeypatch.setattr(mps_leftovers, "_words_of_all", lambda proc: b"")
    folder = make(tmp_path)
    with ExitStack() as stack:
        if sign == "socket":
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(str(folder / "p" / "control"))
            server.listen()
        elif sign == "flock":
            fcntl.flock(stack.enter_context((folder / "p" / "control_lock").open("r+b")), fcntl.LOCK_EX)
        else:  # another process: one's own locks of this kind do not exclude oneself
            command = [sys.executable, "-c", LOCK, str(folder / "p" / "control_lock")]
            process = stack.enter_context(subprocess.Popen(command, stdin=-1, stdout=-1))
            stack.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline()
        grow_old(folder)
        assert list(stale_mps_folders(tmp_path)) == []
