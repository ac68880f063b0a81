"""Which devices a worker gets, and which card its children see."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.fake_nvml import DRIVER_NOT_LOADED, GIB, GPU_IS_LOST, UNKNOWN

from vrampool.errors import DeviceLostError, InputError
from vrampool.settings import Settings
from vrampool_worker.devices import find_devices

FIRST = "GPU-8932f937-0000-0000-0000-000000000001"
SECOND = "GPU-77aa0000-0000-0000-0000-000000000002"
MASK = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def two_cards(fake_nvml):
    fake_nvml.add_card(24 * GIB, card_uuid=FIRST, name="NVIDIA Fake Large")
    fake_nvml.add_card(8 * GIB, card_uuid=SECOND, name="NVIDIA Fake Small")
    return fake_nvml


def ids(gpu="all", mask=None):
    env = {} if mask is None else {MASK: mask}
    return [device.id for device in find_devices(Settings(gpu=gpu), env)]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, [FIRST, SECOND]),
        (FIRST, [FIRST]),
        ("GPU-8932f937", [FIRST]),
        ("gpu-77AA", [SECOND]),
        ("1, 0", [SECOND, FIRST]),
        ("1", [SECOND]),
        ("0,-1,1", [FIRST]),
        (f" {SECOND} , 0", [SECOND, FIRST]),
    ],
)
def test_the_users_mask_is_honoured(two_cards, mask, expected):
    assert ids(mask=mask) == expected


@pytest.mark.parametrize("mask", ["", "-1", " ", "NoDevFiles", "-1,0"])
def test_a_mask_that_hides_every_gpu_is_refused_for_gpus(two_cards, mask):
    """And no card is used in silence; the text says what to do."""
    with pytest.raises(InputError, match="hides every GPU; unset it or name one, or use --gpu cpu"):
        ids(mask=mask)


@pytest.mark.parametrize("mask", ["7", "GPU-nonesuch", "zero", "GPU-"])
def test_a_mask_that_names_no_card_is_refused(two_cards, mask):
    with pytest.raises(InputError, match=MASK):
        ids(mask=mask)


def test_a_card_named_twice_is_refused(two_cards):
    with pytest.raises(InputError, match="twice"):
        ids(mask=f"0,{FIRST}")


@pytest.mark.parametrize(
    ("gpu", "mask", "expected"),
    [
        ("0", None, [FIRST]),
        ("1,0", None, [SECOND, FIRST]),
        (SECOND, None, [SECOND]),
        ("GPU-77", None, [SECOND]),
        ("0", "1,0", [SECOND]),
        ("ALL", "1", [SECOND]),
    ],
)
def test_cards_are_named_within_the_mask(two_cards, gpu, mask, expected):
    assert ids(gpu, mask) == expected


@pytest.mark.parametrize(
    ("gpu", "mask"), [("2", None), ("1", "1"), (FIRST, "1"), ("GPU-", None), ("0,cpu", None), ("", None)]
)
def test_a_card_that_is_not_there_is_refused_and_those_that_are_there_named(two_cards, gpu, mask):
    with pytest.raises(InputError, match="--gpu"):
        ids(gpu, mask)


def test_unlike_cards_are_read_and_used_as_the_same_card(two_cards):
    """CUDA may count them in another order than NVML, so children get the UUID, and PCI order for what they see."""
    for device in find_devices(Settings(), {}):
        env = device.child_env()
        assert env[MASK] == device.id
        assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert device.read().total_bytes == {FIRST: 24 * GIB, SECOND: 8 * GIB}[device.id]


def test_finding_devices_leaves_our_own_environment_alone(two_cards):
    before = dict(os.environ)
    find_devices(Settings())
    assert dict(os.environ) == before


def test_cpu_is_the_cpu_also_beside_gpus(two_cards):
    assert ids("cpu", "") == ["cpu"]


def test_a_lost_card_does_not_keep_the_others_from_working(two_cards, caplog):
    two_cards.fail(0, GPU_IS_LOST)
    assert ids() == [SECOND]
    assert "GPU 0 is left out" in caplog.text
    assert ids(SECOND) == [SECOND]


def test_a_lost_card_that_was_asked_for_is_said_to_be_lost(two_cards):
    two_cards.fail(0, GPU_IS_LOST)
    with pytest.raises(DeviceLostError, match="GPU 0 is lost"):
        ids("0")


def test_a_driver_that_hangs_is_not_waited_for(two_cards):
    two_cards.hang("*")
    with pytest.raises(DeviceLostError, match="hangs: no answer within"):
        find_devices(Settings(nvml_timeout_s=0.2), {})
    two_cards.heal()


@pytest.mark.parametrize("which", ["MIG-", "whole card", "old name"])
def test_mig_instances_are_named_by_uuid_or_their_card(fake_nvml, which):
    card = fake_nvml.add_card()
    one, two = (fake_nvml.add_mig(card, 10 * GIB, gpu_instance=number) for number in (1, 2))
    if which == "MIG-":
        assert ids(mask=two.uuid) == [two.uuid]
        assert ids(one.uuid) == [one.uuid]
        assert ids(mask=f"{two.uuid},{one.uuid}") == [two.uuid, one.uuid]
    elif which == "whole card":
        assert ids("0") == [one.uuid, two.uuid]
    else:
        assert ids(mask=f"MIG-{card.uuid}/2/0") == [two.uuid]


def test_a_card_in_mig_mode_without_instances_is_refused(fake_nvml):
    fake_nvml.add_card()
    fake_nvml.set_mig_mode(0)
    with pytest.raises(InputError, match="MIG mode without any instance"):
        ids()


def test_without_a_driver_all_means_the_cpu(fake_nvml):
    fake_nvml.fail("init", DRIVER_NOT_LOADED)
    assert ids() == ["cpu"]


def test_without_a_driver_a_gpu_needs_its_size_by_hand(fake_nvml):
    fake_nvml.fail("init", DRIVER_NOT_LOADED)
    with pytest.raises(InputError, match="--vram-total"):
        ids("0")
    device = find_devices(Settings(gpu="0", vram_total="8GB"), {})[0]
    assert (device.total_bytes, device.read().used_bytes, device.child_env()[MASK]) == (8 * 1000**3, None, "0")


@pytest.mark.parametrize(("mask", "expected"), [("2", ["2"]), ("3,2", ["3", "2"]), (FIRST, [FIRST])])
def test_a_gpu_by_bookkeeping_is_the_one_of_the_mask(fake_nvml, mask, expected):
    fake_nvml.fail("init", DRIVER_NOT_LOADED)
    devices = find_devices(Settings(vram_total="8GiB"), {MASK: mask})
    assert [device.child_env()[MASK] for device in devices] == expected
    with pytest.raises(InputError, match="hides every GPU"):
        find_devices(Settings(vram_total="8GiB"), {MASK: "-1"})


@pytest.mark.parametrize("mask", [None, "3,2", FIRST])
def test_a_gpu_by_bookkeeping_is_found_again_by_its_id(fake_nvml, mask):
    """A worker is started for each device by its id."""
    fake_nvml.fail("init", DRIVER_NOT_LOADED)
    env = {} if mask is None else {MASK: mask}
    for device in find_devices(Settings(vram_total="8GiB"), env):
        (again,) = find_devices(Settings(gpu=device.id, vram_total="8GiB"), env)
        assert (again.id, again.child_env()) == (device.id, device.child_env())


def test_a_gpu_by_bookkeeping_must_be_in_the_mask(fake_nvml):
    fake_nvml.fail("init", DRIVER_NOT_LOADED)
    for gpu in ("2", "gpu-1", "GPU-else"):
        with pytest.raises(InputError, match=MASK):
            find_devices(Settings(gpu=gpu, vram_total="8GiB"), {MASK: "3,2"})


def test_a_driver_that_fails_is_not_mistaken_for_a_machine_without_gpus(fake_nvml):
    """Training on the CPU in silence would be the worst answer to a broken driver."""
    fake_nvml.add_card()
    fake_nvml.fail("init", UNKNOWN)
    with pytest.raises(DeviceLostError, match="Unknown Error"):
        ids()


LOOK = """
import json
from vrampool.settings import Settings
from vrampool_worker.devices import find_devices
print(json.dumps([[device.id, device.read().used_bytes] for device in find_devices(Settings())]))
"""


def look(env):
    done = subprocess.run([sys.executable, "-c", LOOK], env=dict(os.environ) | env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_program_started_with_the_fake_library_sees_its_cards(fake_nvml):
    card = fake_nvml.add_card()
    fake_nvml.set_used(0, GIB)
    assert look(fake_nvml.env) == [[card.uuid, GIB]]


def test_a_program_without_any_nvml_library_runs_on_the_cpu():
    ((name, _),) = look({"LD_LIBRARY_PATH": "", "FAKE_NVML_STATE": ""})
    assert name == "cpu"
