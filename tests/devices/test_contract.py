"""What every device promises, run over each kind; over a real GPU too where there is one (`-m gpu`)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import pytest
from support.fake_nvml import FakeNvml

from vrampool.errors import VrampoolError
from vrampool.settings import Settings
from vrampool.units import MIB
from vrampool_worker.devices import Device, find_devices

Make = Callable[[], tuple[Device, Callable[[int, int], None]]]


def _host(_: pytest.FixtureRequest) -> tuple[Device, Callable[[int, int], None]]:
    return find_devices(Settings(gpu="cpu"), {})[0], lambda pid, held_bytes: None


def _fake_gpu(request: pytest.FixtureRequest) -> tuple[Device, Callable[[int, int], None]]:
    fake: FakeNvml = request.getfixturevalue("fake_nvml")
    fake.add_card()
    return find_devices(Settings(), {})[0], lambda pid, held_bytes: fake.add_process(0, pid, held_bytes)


def _real_gpu(_: pytest.FixtureRequest) -> tuple[Device, Callable[[int, int], None]]:
    try:
        return find_devices(Settings(gpu="0"), {})[0], lambda pid, held_bytes: pytest.skip(
            "needs a program that uses CUDA"
        )
    except VrampoolError as error:
        pytest.skip(str(error))


@pytest.fixture(params=[_host, _fake_gpu, pytest.param(_real_gpu, marks=pytest.mark.gpu)])
def made(request):
    return request.param(request)


@pytest.fixture
def device(made):
    return made[0]


def test_it_names_itself_for_machines_and_for_people(device):
    assert device.id and device.name and device.label
    assert device.kind in ("cuda", "cpu")
    assert device.default_slots >= 1


def test_it_names_its_driver_or_says_nothing(device):
    assert isinstance(device.driver, str)


def test_a_second_look_finds_the_same_device(device):
    """A worker that is started again must find its device, so the id is no number of this process."""
    gpu = "cpu" if device.kind == "cpu" else device.id
    again = find_devices(Settings(gpu=gpu), {})[0]
    assert (again.id, again.total_bytes) == (device.id, device.total_bytes)


def test_a_reading_is_dated_before_it_was_asked_for(device):
    """What ended before that moment is certainly in the figures."""
    before_s = time.monotonic()
    reading = device.read()
    assert before_s <= reading.at_s <= time.monotonic()


def test_figures_of_a_reading_fit_together(device):
    reading = device.read()
    assert reading.total_bytes == device.total_bytes > 0
    assert 0 <= reading.used_bytes <= reading.total_bytes
    assert 0 <= reading.free_bytes <= reading.total_bytes
    assert not reading.fault


def test_what_it_does_not_tell_is_named(device):
    reading = device.read()
    fields = ("used_bytes", "driver_reserved_bytes", "utilisation", "busy")
    assert {name for name in fields if getattr(reading, name) is None} == set(reading.unknown) - {"process_bytes"}


def test_a_reading_cannot_be_changed(device):
    with pytest.raises(dataclasses.FrozenInstanceError):
        device.read().used_bytes = 0


def test_memory_of_a_trial_is_found_below_its_keeper(made, keep):
    device, use = made
    held_bytes = 96 * MIB
    keeper, trial = keep(held_bytes)
    use(trial, held_bytes)
    device.read()
    measured = device.measure({keeper: None})
    assert held_bytes <= measured[keeper] < held_bytes + 48 * MIB


def test_a_keeper_that_is_gone_is_unknown_not_zero(device):
    device.read()
    assert device.measure({2**22 - 1: None}) == {2**22 - 1: None}


def test_a_child_sees_this_device_and_no_other(device):
    visible = device.child_env()["CUDA_VISIBLE_DEVICES"]
    assert visible == ("" if device.kind == "cpu" else device.id)


def test_a_child_does_not_take_all_cores(device):
    assert int(device.child_env()["OMP_NUM_THREADS"]) >= 1
