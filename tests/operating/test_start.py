"""A local pool that cannot start: one or two lines say why and what to do, and nothing is left."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.commands import call
from support.disks import fill, small_disks

from vrampool.errors import VrampoolError
from vrampool.local import starting
from vrampool.settings import load_settings

OBJECTIVE = "operator:neg"
#: A host that takes any disk for large enough, so that it meets the end of it in the midst of its start.
HOST = "import sys; from vrampool.local import host, state; state.ROOM_BYTES = 1; sys.exit(host.main())"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    with small_disks(tmp_path) as mount:
        yield mount


@pytest.mark.parametrize("leave_bytes", [0, 4096, 200_000], ids=["full", "a block", "less than a database"])
def test_a_full_disk_is_told_before_anything_starts(small_disk, capsys, leave_bytes):
    disk = small_disk("8m")
    state = disk / "state"
    state.mkdir()
    fill(disk, leave_bytes=leave_bytes)
    done = call(capsys, "run", OBJECTIVE, "--trials", "1", "--gpu", "cpu", "--state-dir", state)
    assert done.code == 2 and done.out == ""
    assert done.err.startswith(f"error: no room in the state directory {state}: the disk is full (")
    assert "make room, or choose another with --state-dir" in done.err and done.err.count("\n") == 1
    assert list(state.iterdir()) == []


def test_a_limit_on_the_size_of_files_is_told_too(tmp_path, capsys):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        done = call(capsys, "run", OBJECTIVE, "--trials", "1", "--gpu", "cpu", "--state-dir", tmp_path / "state")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.code == 2 and "`ulimit -f`" in done.err and "raise it" in done.err


@pytest.mark.parametrize("leave_bytes", [0, 4096, 16_384])
def test_a_disk_that_is_filled_while_a_pool_starts_is_told_through_the_pipe(small_disk, leave_bytes):
    """No log says so: there is no room for it."""
    disk = small_disk("8m")
    (state := disk / "state").mkdir()
    fill(disk, leave_bytes=leave_bytes)
    env = os.environ | {"VRAMPOOL_STATE_DIR": str(state), "VRAMPOOL_GPU": "cpu", "VRAMPOOL_READY": "stdout"}
    env |= {"VRAMPOOL_SHARE": "1", "VRAMPOOL_BUDGET": "1GiB", "VRAMPOOL_PRELOAD": ""}
    with (state / "host.log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-c", HOST, "--owned"], env=env, input=b"", stdout=subprocess.PIPE, stderr=log
        )
    told = json.loads(done.stdout)
    assert done.returncode == told["exit_code"] == 2, told
    assert not told["ok"] and any(word in told["error"] for word in ("No space left", "disk is full")), told


def test_a_host_that_is_killed_at_its_start_says_how_it_ended(tmp_path, monkeypatch):
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o700)
    monkeypatch.setattr(starting.sys, "executable", str(killed))
    with pytest.raises(VrampoolError, match=r"its host process was killed by signal 9; see .*host\.log"):
        starting.attach_or_start(load_settings({"state_dir": tmp_path / "s"}, env={}), owned=True)


#: A host whose supervisors are killed at their start, as often as is said; each is counted in a file.
KILLED = """
import os, signal, sys
from vrampool.local import host
call = host._call
def killed(module, *arguments):
    if module == host.SUPERVISOR_MODULE:
        with open(os.environ["STARTS"], "a") as file:
            file.write("x")
        if os.path.getsize(os.environ["STARTS"]) <= int(os.environ["KILLS"]):
            os.kill(os.getpid(), signal.SIGKILL)
    return call(module, *arguments)
host._call = killed
sys.exit(host.main())
"""


@pytest.fixture
def host_of_killed(tmp_path: Path) -> Iterator[Callable[[int], dict[str, object]]]:
    """Start a host whose first supervisors are killed; return what it says of its start."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(kills: int) -> dict[str, object]:
        settings = {
            "STATE_DIR": str(tmp_path / "state"),
            "READY": "stdout",
            "SHARE": "1",
            "BUDGET": "1GiB",
            "GPU": "cpu",
        }
        env = {f"VRAMPOOL_{name}": value for name, value in settings.items()} | {"VRAMPOOL_PRELOAD": ""}
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, "--owned"],
            env=os.environ | env | {"STARTS": str(tmp_path / "starts"), "KILLS": str(kills)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        assert process.stdout is not None
        return json.loads(process.stdout.readline())

    yield start
    for process in processes:
        process.communicate()  # it ends with its standard input


def test_a_supervisor_that_is_killed_at_its_start_is_started_again(host_of_killed, tmp_path):
    assert host_of_killed(2) == {"ok": True}
    assert (tmp_path / "starts").read_text() == "xxx"


def test_one_that_is_killed_each_time_is_told_and_no_error_of_an_earlier_pool(host_of_killed, tmp_path):
    logs = tmp_path / "state" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker.log").write_text("error: cpu is held by another worker\n")
    told = host_of_killed(9)
    assert told["exit_code"] == 1
    assert told["error"] == (
        f"no worker started: the worker supervisor was killed by signal 9, 3 times; see {logs / 'worker.log'}"
    )
    assert (tmp_path / "starts").read_text() == "xxx"
