"""What NVML tells of a real card, by whatever name it is asked for; and `vrampool doctor --gpu` there."""

from __future__ import annotations

from pathlib import Path

from support import commands
from support.card import await_back, memory, on_card, used_bytes, uuid
from support.waiting import until

from vrampool.settings import Settings
from vrampool.units import GIB, MIB
from vrampool_worker.devices import DeviceReading, find_devices

pytestmark = on_card


def test_a_card_is_the_same_by_index_uuid_and_beginning_of_its_uuid() -> None:
    name = uuid()
    for asked in ("0", name, name[:12]):
        found = find_devices(Settings(gpu=asked), {})
        assert [(device.id, device.label) for device in found] == [(name, "GPU 0")], asked
        assert found[0].total_bytes == memory().total and found[0].kind == "cuda"


def test_a_mask_of_a_uuid_leaves_that_card_alone() -> None:
    name = uuid()
    for asked in ("all", "0"):
        found = find_devices(Settings(gpu=asked), {"CUDA_VISIBLE_DEVICES": name})
        assert [device.id for device in found] == [name]
        assert found[0].child_env()["CUDA_VISIBLE_DEVICES"] == name


def test_a_card_tells_everything_from_its_second_reading_on() -> None:
    """How busy it is needs two."""
    device = find_devices(Settings(gpu="0"), {})[0]
    readings = [device.read()]

    def complete() -> DeviceReading | None:
        readings.append(device.read())
        return None if readings[-1].unknown else readings[-1]

    reading = until(complete, timeout_s=10, what=f"a reading without gaps: {readings[-1]}")
    print(reading, device.driver)
    assert device.driver and reading.driver_reserved_bytes is not None
    assert abs(reading.driver_reserved_bytes - memory().reserved) < 64 * MIB < reading.driver_reserved_bytes
    assert reading.used_bytes is not None and abs(reading.used_bytes - used_bytes()) < 64 * MIB
    assert reading.utilisation is not None and 0 <= reading.utilisation <= 1
    assert reading.free_bytes is not None and reading.free_bytes > 8 * GIB and not reading.fault


def test_the_doctor_shows_that_a_cap_holds_beside_a_neighbour(tmp_path: Path) -> None:
    before_bytes = used_bytes()
    state = tmp_path / "state"
    process = commands.start("doctor", "--gpu", "0", "--json", "--state-dir", state)
    done = commands.finish(process, limit_s=110)
    print(done)
    assert done.code == 0, done
    checks = {check["name"]: check for check in done.json["checks"]}
    assert "cap on GPU 0" in checks, done
    cap = checks["cap on GPU 0"]
    assert cap["verdict"] == "ok", done
    assert "a trial that took too much failed at its cap of 384 MiB of a lease of" in cap["text"], done
    assert "its neighbour went on (" in cap["text"], done
    assert "their memory was seen back after" in cap["text"], done
    await_back(before_bytes)
