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


@pytest.mark.parametrize("leave_bytes", [0, 4096, 16_384, 65_536])
def test_a_disk_that_is_filled_while_a_pool_starts_is_told_through_the_pipe(small_disk, leave_bytes):
    """No log says so: there is no room for it."""
    disk = small_disk("8m")
    (state := disk / "state").mkdir()
    fill(disk, leave_bytes=leave_bytes)
    env = os.environ | {"VRAMPOOL_STATE_DIR": str(state), "VRAMPOOL_GPU": "cpu", "VRAMPOOL_READY": "stdout"}
    env |= {"VRAMPOOL_SHARE": "1", "VRAMPOOL_BUDGET": "1GiB", "VRAMPOOL_PRELOAD": ""}
    with (state / "host.log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-c", HOST], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
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
