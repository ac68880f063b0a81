"""`vrampool doctor` on devices that are not well: it says so, and never hangs with them."""

from __future__ import annotations

import os
import select
import selectors
import subprocess
import sys

import pytest
from support.fake_nvml import GIB, NOT_SUPPORTED, UNKNOWN

from vrampool.settings import Settings
from vrampool_worker import doctor
from vrampool_worker.children.launch import scratch_folder
from vrampool_worker.devices import find_devices


@pytest.fixture
def device(fake_nvml):
    fake_nvml.add_card(24 * GIB)
    return find_devices(Settings(gpu="0"), {})[0]


def test_a_card_is_named_with_its_budget_and_what_it_does_not_tell(fake_nvml, device):
    fake_nvml.fail(0, NOT_SUPPORTED, "busy")
    fake_nvml.set_used(0, 3 * GIB)
    name, verdict, text = doctor._device(device, Settings(gpu="0"))
    assert (name, verdict) == ("GPU 0", "ok")
    assert "24.0 GiB, budget 20.4 GiB" in text and "3.0 GiB in use" in text
    assert "it does not tell busy, utilisation;" in text


def test_utilisation_is_what_lies_between_two_readings_so_two_are_taken(fake_nvml):
    fake_nvml.add_card(24 * GIB)
    fake_nvml.set_busy(0, 99, sm_percent=17)
    _, _, text = doctor._device(find_devices(Settings(gpu="0"), {})[0], Settings(gpu="0"))
    assert "does not tell" not in text


def test_a_driver_that_hangs_does_not_hang_the_doctor(fake_nvml, device):
    fake_nvml.hang(0)
    _, verdict, text = doctor._device(device, Settings(gpu="0", nvml_timeout_s=0.2))
    fake_nvml.heal()
    assert verdict == "fail" and "it cannot be read: no answer within 0.2 s" in text


@pytest.mark.parametrize(("code", "word"), [(UNKNOWN, "Unknown Error"), (15, "is lost")])
def test_a_card_in_disorder_fails(fake_nvml, device, code, word):
    fake_nvml.fail(0, code, "memory")
    _, verdict, text = doctor._device(device, Settings(gpu="0"))
    assert verdict == "fail" and word in text


def test_leftovers_of_trials_are_pointed_out(tmp_path, monkeypatch):
    monkeypatch.setattr("vrampool_worker.reclaim._orphans", lambda proc: iter(()))
    monkeypatch.setattr("vrampool_worker.reclaim.stale_mps_folders", lambda: iter(()))
    settings = Settings(state_dir=tmp_path)
    assert doctor._leftovers(settings) is None
    with subprocess.Popen([sys.executable, "-c", ""], env=dict(os.environ)) as gone:
        gone.wait()
    folder = scratch_folder(tmp_path) / f"{gone.pid}-1"
    folder.mkdir(parents=True)
    found = doctor._leftovers(settings)
    assert found == ("leftovers", "warn", f"the directory {folder}; `vrampool reclaim` lists and ends them")


class _LateSelector(selectors.DefaultSelector):
    """Comes back only when all that a child's end makes readable is so, its end before what it printed."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        lives = [fd for fd in list(self.get_map()) if os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[pidfd]"]
        found = super().select(timeout)
        if len(found) > 1 or not found:
            return found
        poll = select.poll()
        for fd in lives:
            poll.register(fd, select.POLLIN)
        poll.poll(2000)
        return sorted(super().select(0), key=lambda item: item[0].fd, reverse=True)


def test_a_childs_end_and_its_last_words_may_come_in_one_turn(device, monkeypatch, tmp_path):
    """Once its end was seen all is closed; then nothing is read from it."""
    monkeypatch.setattr(doctor.selectors, "DefaultSelector", _LateSelector)
    name, verdict, text = doctor._child(device, Settings(gpu="0", state_dir=tmp_path))
    assert (name, verdict) == ("trial's process", "ok"), text


def test_a_child_that_does_not_start_leaves_nothing_open(device, monkeypatch, tmp_path):
    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(doctor, "START_LIMIT_S", -1.0)
    assert doctor._child(device, Settings(gpu="0", state_dir=tmp_path))[1] == "fail"
    assert sorted(os.listdir("/proc/self/fd")) == before
