"""A device is one worker's own. Who comes after one that was killed waits for what that has left."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from optuna.trial import TrialState
from recovery.conftest import living
from recovery.hardy import HardyPool
from recovery.processes import lives
from support.waiting import until

from vrampool.errors import DeviceConflictError
from vrampool.health import SignOfLife
from vrampool.messages import EndKind
from vrampool.settings import Settings
from vrampool.storage import attempt_of
from vrampool_worker import supervisor
from vrampool_worker.devices import Device, device_lock, lock
from vrampool_worker.devices.host import HostDevice

COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL


@pytest.fixture(scope="module")
def own_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HardyPool]:
    """A pool that shares its device with nobody; its locks lie where other pools of this host do not look."""
    found = HardyPool(tmp_path_factory.mktemp("own"), mutants="own_locks", share=False)
    living.append(found)
    try:
        yield found
        found.down()
    finally:
        living.remove(found)
        found.destroy()


@pytest.fixture
def pool(own_pool: HardyPool, tmp_path: Path) -> HardyPool:
    own_pool.begin(tmp_path)
    return own_pool


def test_a_killed_worker_s_device_is_free_for_the_next_at_once(pool: HardyPool):
    """Neither its children nor its keepers hold the lock."""
    handle = pool.submit("wait_at_gate")
    pool.await_note("waiting", 0)
    pool.processes.kill("worker")
    pool.await_note("waiting", 1)
    pool.open_gate()
    assert [trial.state for trial in pool.await_end(handle)] == [FAIL, COMPLETE]
    assert "is held by" not in pool.log_of("worker")


def test_a_new_supervisor_waits_for_the_device_that_the_old_one_s_worker_still_holds(pool: HardyPool):
    """The old worker drains: it hands its trial back when the grace is over."""
    handle = pool.submit("wait_at_gate")
    pool.await_note("waiting", 0)
    worker = pool.processes.worker()
    pool.processes.kill("supervisor")
    until(lambda: "waiting for a worker of before" in pool.log_of("worker"), what="a supervisor that waits")
    until(lambda: not lives(worker), what="the end of the old worker")
    pool.await_note("waiting", 1)
    pool.open_gate()
    assert [trial.state for trial in pool.await_end(handle)] == [FAIL, COMPLETE]


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


def test_up_right_after_the_host_was_killed_returns_at_once_and_takes_over_what_runs(pool: HardyPool):
    """The old worker holds the device while it drains; its trial is handed back and runs under the new one."""
    handle = pool.submit("wait_at_gate")
    pool.await_note("waiting", 0)
    old = pool.processes.note_all()
    pool.processes.kill("host")
    pool.up()
    pool.await_note("waiting", 1)
    pool.open_gate()
    first, second = pool.await_end(handle)
    facts = attempt_of(first)
    assert (first.state, second.state) == (FAIL, COMPLETE)
    assert facts is not None and facts.end == EndKind.PREEMPTED
    until(lambda: not any(map(lives, old)), what="an end of the old pool's processes")
