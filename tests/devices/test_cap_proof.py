"""`vrampool doctor --gpu`: that a cap holds is tried out, and a cap that does not hold is said to fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.commands import call
from support.fake_nvml import GIB

from vrampool.settings import Settings
from vrampool.units import MIB
from vrampool_worker import cap_proof

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture
def pretend_torch(fake_nvml, monkeypatch):
    """A card whose trials find a torch that pretends to allocate on it."""
    fake_nvml.add_card(24 * GIB)
    path = os.pathsep.join([str(SUPPORT / "pretend"), str(SUPPORT.parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake_nvml


def test_on_a_card_the_cap_is_shown_with_what_the_device_saw(pretend_torch):
    """The one that takes too much fails at its cap, the card shows no more than its lease, the neighbour goes on."""
    ((name, verdict, text),) = cap_proof.prove(Settings(gpu="0"))
    assert (name, verdict) == ("cap on GPU 0", "ok"), text
    assert "failed at its cap of 384 MiB of a lease of 1.1 GiB; the device showed at most 1004 MiB" in text
    assert "its neighbour went on (" in text and "the driver takes 620 MiB for a process" in text
    assert "their memory was seen back after 0." in text


def test_a_cap_that_does_not_hold_fails(pretend_torch, monkeypatch):
    """As on a torch that knows no fraction."""
    monkeypatch.setenv("PRETEND_NO_CAP", "1")
    ((_, verdict, text),) = cap_proof.prove(Settings(gpu="0"))
    assert verdict == "fail"
    assert text.startswith("a trial that took more than its lease was not stopped by its cap: value [1610612736.0]")


def test_a_lease_that_is_too_small_for_what_the_driver_takes_fails(pretend_torch, monkeypatch):
    """The cap holds, and the card shows more than was granted all the same."""
    monkeypatch.setattr(cap_proof, "FIRST_BYTES", 200 * MIB)
    ((_, verdict, text),) = cap_proof.prove(Settings(gpu="0"))
    assert verdict == "fail"
    assert text == "the device showed 1004 MiB of it, over the lease of 584 MiB"


def test_a_card_that_is_full_is_left_alone(pretend_torch):
    pretend_torch.set_used(0, 22 * GIB)
    ((_, verdict, text),) = cap_proof.prove(Settings(gpu="0"))
    assert verdict == "warn" and text == "not shown: 2.5 GiB must be free for it, 1.5 GiB are"


def test_a_driver_that_hangs_is_said_to(pretend_torch):
    settings = Settings(gpu="0", nvml_timeout_s=0.3)
    devices = cap_proof.find_devices(settings, os.environ)
    pretend_torch.hang(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cap_proof, "find_devices", lambda *_: devices)
        ((_, verdict, text),) = cap_proof.prove(settings)
    pretend_torch.heal()
    assert verdict == "fail" and "GPU 0 cannot be read: no answer within 0.3 s" in text


def test_on_the_cpu_the_kernels_own_limit_is_shown(tmp_path, capsys):
    """Without --gpu nothing is tried out."""
    done = call(capsys, "doctor", "--gpu", "cpu", "--json", "--state-dir", tmp_path)
    assert done.code == 0, done
    (cap,) = [check for check in done.json["checks"] if check["name"] == "cap on the CPU"]
    assert cap["verdict"] == "ok"
    assert "failed at its cap of 384 MiB" in cap["text"] and "its neighbour went on (" in cap["text"]


def test_on_a_machine_without_gpu_it_says_that_it_is_shown_on_the_cpu(monkeypatch):
    monkeypatch.setattr(cap_proof._Proof, "run", lambda self: "shown")
    found = list(cap_proof.prove(Settings(gpu="all")))
    assert [item[1:] for item in found] == [
        ("warn", "there is no NVIDIA GPU here that can be used; the cap is shown on the CPU, with host memory"),
        ("ok", "shown"),
    ]


def test_a_limit_that_is_never_set_would_be_noticed(monkeypatch, tmp_path):
    """A trial on the CPU whose limit is lifted takes what it likes, and the proof fails."""
    monkeypatch.setattr(cap_proof, "CAP_BYTES", 48 * MIB)
    real = cap_proof.ChildStart
    monkeypatch.setattr(cap_proof, "ChildStart", lambda **fields: real(**{**fields, "cap_bytes": None}))
    ((_, verdict, text),) = cap_proof.prove(Settings(gpu="cpu"))
    assert verdict == "fail"
    assert text.startswith("a trial that took more than its lease was not stopped by its cap: value [201326592.0]")
