"""The CPU as a device: its total, what of it is used, and the trees of trials."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vrampool.errors import DeviceLostError
from vrampool.units import GIB, MIB
from vrampool_worker.devices import cgroups
from vrampool_worker.devices.host import HostDevice

V1_MOUNT = "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
V2_MOUNT = "41 31 0:38 {root} /sys/fs/cgroup rw - cgroup2 cgroup2 rw"


class Host:
    """A host's /proc and /sys in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {12 * GIB // 1024} kB\n")
        self.write("proc/cpuinfo", "model name : Fake Xeon\n")

    def write(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def v2(self, group: str, limit: str, used_bytes: int, *, dropped_bytes: int = 0, mounted: str = "/") -> None:
        self.write("proc/self/cgroup", f"0::{group}\n")
        self.write("proc/self/mountinfo", V2_MOUNT.format(root=mounted) + "\n")
        self.level(f"sys/fs/cgroup{group if mounted == '/' else ''}", limit, used_bytes, dropped_bytes)

    def level(self, folder: str, limit: str, used_bytes: int, dropped_bytes: int = 0) -> None:
        self.write(f"{folder}/memory.max", limit)
        self.write(f"{folder}/memory.current", str(used_bytes))
        self.write(f"{folder}/memory.stat", f"anon 1\ninactive_file {dropped_bytes}\n")

    def v1(self, group: str, limit_bytes: int, used_bytes: int, *, dropped_bytes: int = 0, mounted: str = "/") -> None:
        self.write("proc/self/cgroup", f"4:memory:{group}\n3:cpu,cpuacct:/\n0::/\n")
        self.write("proc/self/mountinfo", V1_MOUNT.format(root=mounted) + "\n")
        folder = f"sys/fs/cgroup/memory{group if mounted == '/' else ''}"
        self.write(f"{folder}/memory.limit_in_bytes", str(limit_bytes))
        self.write(f"{folder}/memory.usage_in_bytes", str(used_bytes))
        self.write(f"{folder}/memory.stat", f"inactive_file 7\ntotal_inactive_file {dropped_bytes}\n")

    @property
    def device(self) -> HostDevice:
        return HostDevice({}, root=self.root)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_without_a_control_group_the_total_is_the_ram(host):
    reading = host.device.read()
    assert (host.device.total_bytes, reading.used_bytes) == (16 * GIB, 4 * GIB)


@pytest.mark.parametrize("limit", ["max", str(2**63 - 4096)])
def test_no_limit_is_no_limit(host, limit):
    host.v2("/a", limit, GIB)
    assert host.device.total_bytes == 16 * GIB


def test_a_limit_of_version_2_is_the_total(host):
    host.v2("/kubepods/pod1", str(2 * GIB), GIB)
    reading = host.device.read()
    assert (host.device.total_bytes, reading.used_bytes) == (2 * GIB, GIB)


def test_a_limit_of_a_group_above_counts_too(host):
    host.v2("/a/b", str(6 * GIB), GIB)
    host.level("sys/fs/cgroup/a", str(3 * GIB), 2 * GIB)
    assert host.device.total_bytes == 3 * GIB
    assert host.device.read().free_bytes == GIB


def test_a_limit_of_version_1_is_the_total(host):
    host.v1("/docker/abc", 2 * GIB, GIB)
    assert (host.device.total_bytes, host.device.read().free_bytes) == (2 * GIB, GIB)


def test_version_1_without_limit_is_no_limit(host):
    host.v1("/docker/abc", 9223372036854771712, GIB)
    assert host.device.total_bytes == 16 * GIB


def test_a_container_sees_its_own_group_at_the_mount_point(host):
    """The group's path is then one of the host, of which only the end is mounted."""
    host.v1("/docker/abc", 2 * GIB, GIB, mounted="/docker/abc")
    assert host.device.total_bytes == 2 * GIB


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_file_pages_that_the_kernel_drops_first_are_not_in_use(host, version):
    getattr(host, version)("/a", 2 * GIB if version == "v1" else str(2 * GIB), GIB, dropped_bytes=GIB // 2)
    assert host.device.read().used_bytes == GIB // 2


def test_a_group_that_cannot_be_found_is_looked_for_at_the_mount_point(host):
    host.v2("/../elsewhere", str(5 * GIB), GIB)
    host.level("sys/fs/cgroup", str(4 * GIB), GIB)
    assert host.device.total_bytes == 4 * GIB


def test_what_the_host_lacks_counts_though_the_group_has_room(host):
    host.v2("/a", str(14 * GIB), GIB)
    assert host.device.read().free_bytes == 12 * GIB


def test_a_host_without_proc_says_so(tmp_path):
    with pytest.raises(DeviceLostError, match="meminfo"):
        HostDevice({}, root=tmp_path)


def test_there_are_as_many_slots_as_cores_and_each_gets_one(host):
    device = host.device
    assert device.default_slots == cgroups.cores(host.root) == len(os.sched_getaffinity(0))
    assert device.child_env()["OMP_NUM_THREADS"] == "1"
    assert HostDevice({}, slots=1, root=host.root).child_env()["OMP_NUM_THREADS"] == str(device.default_slots)


def test_a_cpu_quota_counts_as_cores(host):
    host.v2("/a", "max", GIB)
    host.write("sys/fs/cgroup/a/cpu.max", "150000 100000\n")
    assert cgroups.cores(host.root) == 1
    host.write("sys/fs/cgroup/a/cpu.max", "max 100000\n")
    assert cgroups.cores(host.root) == len(os.sched_getaffinity(0))


def test_the_name_says_what_the_machine_is(host):
    assert host.device.name.startswith("Fake Xeon, ")


FORKING = """
import os, sys
held = bytearray(b'x') * {}
read, write = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        os.read(read, 1)
        os._exit(0)
os.close(read)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_pages_that_forks_share_are_counted_once(keep):
    """Four processes share 128 MiB, as DataLoader workers do: their resident pages sum up to four times that."""
    keeper, _ = keep(128 * MIB, FORKING)
    device = HostDevice({})
    (measured,) = device.measure({keeper: None}).values()
    assert 128 * MIB <= measured < 192 * MIB


THREADED = """
import subprocess, sys, os, threading
program = "held = bytearray(b'x') * {}; print(1, flush=True); input()"
started = []
def start():
    started.append(subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    started[0].stdout.readline()
    print(os.getpid(), flush=True)
    started[0].wait()
threading.Thread(target=start, daemon=True).start()
sys.stdin.read()
"""


def test_a_process_started_by_a_thread_is_found(keep):
    keeper, _ = keep(96 * MIB, THREADED)
    (measured,) = HostDevice({}).measure({keeper: None}).values()
    assert measured >= 96 * MIB
