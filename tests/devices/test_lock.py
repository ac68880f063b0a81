"""One worker for each device of a host."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import uuid

import pytest
from support.disks import fill, small_disks

from vrampool.errors import DeviceConflictError
from vrampool_worker.devices import device_lock

HOLD = """
import sys
from pathlib import Path
from vrampool_worker.devices import device_lock
with device_lock(sys.argv[1], sys.argv[2] == "share", folder=Path(sys.argv[3])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """Hold a lock in another process."""
    started = []

    def start(device_id, share=False):
        command = [sys.executable, "-c", HOLD, device_id, "share" if share else "alone", str(tmp_path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.communicate()


def test_a_second_worker_is_refused_and_told_who_is_first(hold, tmp_path):
    first = hold("GPU-1")
    with (
        pytest.raises(DeviceConflictError, match=rf"GPU-1 is held by another worker \(pid {first.pid}, of \S+\)"),
        device_lock("GPU-1", False, folder=tmp_path),
    ):
        pass


def test_workers_that_all_share_may_hold_one_device(hold, tmp_path):
    hold("GPU-1", share=True)
    with device_lock("GPU-1", True, folder=tmp_path):
        pass


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_sharing_needs_both(hold, tmp_path, first, second):
    hold("GPU-1", share=first)
    with pytest.raises(DeviceConflictError, match="--share"), device_lock("GPU-1", second, folder=tmp_path):
        pass


def test_another_device_is_free(hold, tmp_path):
    hold("GPU-1")
    with device_lock("GPU-2", False, folder=tmp_path):
        pass


def test_a_killed_worker_holds_nothing(hold, tmp_path):
    first = hold("GPU-1")
    first.kill()
    first.wait()
    with device_lock("GPU-1", False, folder=tmp_path):
        pass


def test_it_can_be_taken_again_and_again(tmp_path):
    for _ in range(3):
        with device_lock("cpu", False, folder=tmp_path):
            pass


def test_a_device_id_is_no_path(tmp_path):
    with device_lock("../../GPU/1", False, folder=tmp_path):
        assert [path.parent for path in tmp_path.iterdir()] == [tmp_path]


def test_a_link_somebody_laid_there_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / "vrampool-GPU-1.lock").symlink_to(target)
    with pytest.raises(DeviceConflictError, match="remove the file"), device_lock("GPU-1", False, folder=tmp_path):
        pass
    assert target.read_text() == "kept"


def test_by_default_it_is_the_same_for_all_processes_of_the_host():
    device_id = f"test-{uuid.uuid4()}"
    with device_lock(device_id, False), pytest.raises(DeviceConflictError), device_lock(device_id, False):
        pass


def test_others_may_read_the_file_and_not_write_it(tmp_path):
    with device_lock("GPU-1", False, folder=tmp_path):
        (path,) = tmp_path.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) & 0o022 == 0
        assert os.access(path, os.R_OK)


def test_a_full_disk_holds_nobody_up(tmp_path):
    """Only the text in the file is missing then: who holds it."""
    with small_disks(tmp_path) as mount:
        disk = mount("1m")
        with device_lock("cpu", share=False, folder=disk):
            (disk / "vrampool-cpu.lock").write_text("")  # as it was made, before anybody signed it
        fill(disk)
        with (
            device_lock("cpu", share=False, folder=disk),
            pytest.raises(DeviceConflictError, match="another worker;"),
            device_lock("cpu", share=False, folder=disk),
        ):
            pass
