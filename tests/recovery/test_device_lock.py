"""A device is one worker's own. Who comes after one that was killed waits for what that has left."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from optuna.trial import TrialState

from vrampool.errors import DeviceConflictError
from vrampool.health import SignOfLife
from vrampool.settings import Settings
from vrampool_worker import supervisor
from vrampool_worker.devices import Device, device_lock, lock
from vrampool_worker.devices.host import HostDevice

COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL


@pytest.fixture
def held_device(tmp_path: Path) -> Iterator[tuple[Device, Settings, ExitStack]]:
    """A device that somebody holds until the stack is closed; nobody waits longer than he must."""
    device = HostDevice({}, slots=1)
    device.id = f"test-{uuid.uuid4().hex}"
    settings = Settings(state_dir=tmp_path, grace_s=0.0, stop_ask_s=0.0)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as held:
        patch.setattr(supervisor, "PATIENCE_S", 0.0)
        patch.setattr(lock, "_FOLDERS", (tmp_path,))
        held.enter_context(device_lock(device.id, False))
        yield device, settings, held


def test_it_waits_as_long_as_a_worker_of_its_own_pool_lives(held_device):
    """One whose result the database does not take, for example: it holds the device until it can tell."""
    device, settings, held = held_device
    sign = SignOfLife(settings.state_dir, "worker", device.id, name="old", limit_s=0.1)
    sign.show("draining", ready=False)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(supervisor.await_free, [device], settings)
        with pytest.raises(TimeoutError):
            waiting.result(1.0)
        held.close()
        waiting.result(10)


def test_it_gives_up_on_a_device_that_somebody_else_holds(held_device):
    device, settings, _ = held_device
    with pytest.raises(DeviceConflictError):
        supervisor.await_free([device], settings)
