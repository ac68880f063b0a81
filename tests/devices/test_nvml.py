"""GPUs through NVML, with the drivers' and containers' known faults."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_nvml import DRIVER_NOT_LOADED, GIB, GPU_IS_LOST, NOT_SUPPORTED, UNKNOWN
from support.waiting import until

from vrampool.errors import DeviceLostError, InputError
from vrampool.settings import Settings
from vrampool.units import MIB
from vrampool_worker.devices import find_devices
from vrampool_worker.devices.nvml import NvmlDevice, list_cards

RESET_REQUIRED = 16


@pytest.fixture
def card(fake_nvml):
    return fake_nvml.add_card(24 * GIB, reserved_bytes=512 * MIB)


@pytest.fixture
def device(card):
    return find_devices(Settings(), {})[0]


def test_the_drivers_part_is_not_counted_as_used(fake_nvml, device):
    fake_nvml.set_used(0, 3 * GIB)
    reading = device.read()
    assert (reading.used_bytes, reading.driver_reserved_bytes) == (3 * GIB, 512 * MIB)
    assert reading.free_bytes == 24 * GIB - 512 * MIB - 3 * GIB


def test_an_old_driver_counts_its_own_part_as_used(fake_nvml, card):
    """Then it shows as somebody's use, and admission comes out the same."""
    fake_nvml.fail(0, NOT_SUPPORTED, "memory2")
    fake_nvml.set_used(0, 3 * GIB)
    reading = find_devices(Settings(), {})[0].read()
    assert reading.used_bytes == 3 * GIB + 512 * MIB
    assert reading.driver_reserved_bytes is None and "driver_reserved_bytes" in reading.unknown


def test_memory_of_a_process_is_gone_when_it_dies(fake_nvml, device):
    """Before anybody has reaped it, as with a real driver."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fake_nvml.add_process(0, process.pid, 5 * GIB)
    assert device.read().process_bytes == {process.pid: 5 * GIB}
    died = os.pidfd_open(process.pid)
    process.kill()
    select.select([died], [], [])
    os.close(died)
    assert device.read().used_bytes == 0
    process.communicate()


HOLD = "from support.fake_nvml import hold; hold(5 * 1024**3); print('held', flush=True); input()"


def test_an_objective_may_use_memory_of_the_card_it_was_given(fake_nvml, device):
    """As the objectives of other tests do, in the child of a whole worker."""
    env = dict(os.environ) | device.child_env() | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", HOLD]
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    assert device.read().process_bytes == {process.pid: 5 * GIB}
    process.communicate("\n")
    assert device.read().used_bytes == 0


def test_memory_may_come_back_late_or_never(fake_nvml, device):
    process = subprocess.Popen([sys.executable, "-c", ""])
    fake_nvml.add_process(0, process.pid, 5 * GIB)
    fake_nvml.set_linger(0, None)
    process.wait()
    assert device.read().used_bytes == 5 * GIB
    fake_nvml.set_linger(0, 0)
    assert device.read().used_bytes == 0


def test_a_process_without_a_figure_is_unknown(fake_nvml, device, keep):
    keeper, trial = keep(1)
    fake_nvml.add_process(0, trial, None)
    assert device.read().process_bytes == {trial: None}
    assert device.measure({keeper: None}) == {keeper: None}


def test_an_empty_process_list_leaves_the_devices_figures(fake_nvml, device, keep):
    keeper, trial = keep(1)
    fake_nvml.add_process(0, trial, 4 * GIB)
    fake_nvml.hide_processes(0)
    reading = device.read()
    assert (reading.used_bytes, reading.process_bytes) == (4 * GIB, {})
    assert device.measure({keeper: None}) == {keeper: None}


def test_in_a_container_a_pid_that_looks_like_ours_is_not_believed(fake_nvml, card, keep):
    """The driver may name a process of the host that happens to have our trial's number."""
    keeper, trial = keep(1)
    fake_nvml.add_process(0, trial, 9 * MIB, alive=False)
    inside = NvmlDevice(list_cards()[0], threads=1, env={}, pids_are_ours=False)
    inside.read()
    assert inside.measure({keeper: None}) == {keeper: None}


def test_pids_of_another_namespace_are_said_to_be(fake_nvml, card):
    """So that nobody looks for their names among our own processes."""
    inside = NvmlDevice(list_cards()[0], threads=1, env={}, pids_are_ours=False)
    assert inside.read().foreign_pids
    assert not NvmlDevice(list_cards()[0], threads=1, env={}, pids_are_ours=True).read().foreign_pids


def test_the_drivers_version_is_known(device):
    """What a process takes beside torch's allocator depends on it."""
    assert device.driver == "999.99.fake"


def test_a_process_list_that_fails_is_no_fault(fake_nvml, device):
    fake_nvml.fail(0, UNKNOWN, "list")
    reading = device.read()
    assert reading.used_bytes == 0 and not reading.fault
    assert "process_bytes" in reading.unknown


@pytest.mark.parametrize("code", [GPU_IS_LOST, RESET_REQUIRED, DRIVER_NOT_LOADED])
def test_a_lost_card_is_said_to_be_lost(fake_nvml, device, code):
    fake_nvml.fail(0, code)
    with pytest.raises(DeviceLostError, match=r"GPU 0 .* is lost"):
        device.read()


def test_an_unknown_error_makes_a_reading_no_news_until_it_is_over(fake_nvml, device):
    fake_nvml.fail(0, UNKNOWN, "memory")
    reading = device.read()
    assert "Unknown Error" in reading.fault and reading.used_bytes is None
    fake_nvml.heal()
    assert device.read().fault == ""


def test_nvml_that_cannot_be_started_again_means_the_card_is_lost(fake_nvml, device):
    """A container that lost its devices: "Failed to initialize NVML: Unknown Error"."""
    fake_nvml.fail(0, UNKNOWN, "memory")
    fake_nvml.fail("init", UNKNOWN)
    with pytest.raises(DeviceLostError):
        device.read()


def test_one_devices_restart_of_nvml_does_not_spoil_anothers_handle(fake_nvml, device):
    fake_nvml.add_card(8 * GIB)
    other = find_devices(Settings(gpu="1"), {})[0]
    fake_nvml.fail(0, UNKNOWN, "memory")
    device.read()
    assert other.read().total_bytes == 8 * GIB


def test_a_card_that_does_not_tell_its_memory_needs_its_size(fake_nvml, card):
    fake_nvml.fail(0, NOT_SUPPORTED, "memory")
    with pytest.raises(InputError, match="--vram-total"):
        find_devices(Settings(), {})


def test_with_its_size_by_hand_such_a_card_is_managed_by_bookkeeping(fake_nvml, card, caplog):
    fake_nvml.fail(0, NOT_SUPPORTED, "memory")
    device = find_devices(Settings(vram_total="8GiB"), {})[0]
    reading = device.read()
    assert (device.total_bytes, reading.used_bytes, reading.fault) == (8 * GIB, None, "")
    device.read()
    assert caplog.text.count("bookkeeping alone") == 1


def test_utilisation_is_that_of_the_multiprocessors(fake_nvml, card):
    fake_nvml.set_busy(0, 99, sm_percent=17)
    device = find_devices(Settings(), {})[0]
    first = device.read()
    assert (first.utilisation, first.busy) == (None, 0.99)
    fake_nvml.set_busy(0, 99, sm_percent=33)
    assert until(lambda: device.read().utilisation, what="GPM's time between two samples") == 0.33
    fake_nvml.set_busy(0, 99, sm_percent=54)
    assert until(lambda: device.read().utilisation) == 0.54


def test_without_gpm_utilisation_is_unknown(fake_nvml, device):
    fake_nvml.set_busy(0, 99)
    device.read()
    assert "utilisation" in device.read().unknown


def test_mig_instances_are_devices_of_their_own(fake_nvml, card):
    small = fake_nvml.add_mig(card, 10 * GIB, gpu_instance=3)
    large = fake_nvml.add_mig(card, 12 * GIB, gpu_instance=5)
    devices = find_devices(Settings(), {})
    assert [(item.id, item.total_bytes, item.label) for item in devices] == [
        (small.uuid, 10 * GIB, "GPU 0 MIG 3"),
        (large.uuid, 12 * GIB, "GPU 0 MIG 5"),
    ]
    fake_nvml.set_used(small.uuid, GIB)
    assert [item.read().used_bytes for item in devices] == [GIB, 0]
    assert devices[0].child_env()["CUDA_VISIBLE_DEVICES"] == small.uuid


def test_utilisation_of_a_mig_instance_is_read_through_its_card(fake_nvml, card):
    fake_nvml.add_mig(card, 10 * GIB, gpu_instance=3)
    fake_nvml.set_busy(0, 50, sm_percent=40)
    device = find_devices(Settings(), {})[0]
    device.read()
    assert until(lambda: device.read().utilisation) == 0.4
    assert device.read().busy is None
