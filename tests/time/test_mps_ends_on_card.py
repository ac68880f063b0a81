"""NVIDIA's MPS daemon ends with its worker, however that ends; and where it is not used for want of room."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState
from support.card import await_back, await_end, await_files, card_pool, objective, on_card, told, used_bytes
from support.child_driver import alive
from support.mps_processes import await_gone, mps_of
from support.pools import LivePool, PoolMaker, facts_of, only
from support.waiting import until

from vrampool.units import GIB

pytestmark = on_card
COMPLETE = TrialState.COMPLETE


def test_with_a_budget_of_85_percent_auto_leaves_mps_off_and_says_why(
    make_pool: PoolMaker, baseline_bytes: int
) -> None:
    """Stands first: its pool has the card, and gives it back to the others here."""
    pool = card_pool(make_pool, mps="auto", budget="85%", preload="")
    record = until(lambda: [item for item in pool.devices() if item.mps is not None], what="a word on MPS")[0]
    assert record.mps is not None
    assert record.mps.state == "off", record.mps
    assert record.mps.reason == "the budget is 85 % of the card; with --mps auto it may be at most 80 %", record.mps
    assert not [item for item in psutil.Process(record.pid).children() if "mps_guard" in " ".join(item.cmdline())]


@pytest.fixture(scope="module")
def started(own_settings: None, baseline_bytes: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("ends"))
    try:
        yield card_pool(maker, mps="auto", budget="80%", max_trials=2)
    finally:
        maker.close()


@pytest.fixture
def pool(started: LivePool) -> Iterator[LivePool]:
    yield started
    started.clear()


def test_with_a_budget_of_80_percent_auto_uses_mps_once_a_canary_has_told_its_cap(
    pool: LivePool, tmp_path: Path
) -> None:
    mps_of(pool)
    env = {"CARD_FOLDER": str(tmp_path)}
    canary = await_end(pool.submit(objective("after_the_fault"), vram="2GiB", env=env))
    handle = await_end(pool.submit(objective("after_the_fault"), vram="2GiB", env=env))
    print(told(canary), told(handle), sep="\n")
    facts = facts_of(only(canary))
    assert (facts.end, facts.mps) == ("complete", False), told(canary)
    assert facts.mps_reason == "its objective has not run well outside MPS yet", told(canary)
    assert (only(handle).state, facts_of(only(handle)).mps) == (COMPLETE, True), told(handle)


@pytest.mark.parametrize("victim", ["worker", "supervisor"])
def test_when_one_above_it_is_killed_nothing_of_mps_stays(
    pool: LivePool, baseline_bytes: int, tmp_path: Path, victim: str
) -> None:
    """With a client at work. The trial is lost with its worker, and tried again by the next one, which has MPS anew."""
    env = {"CARD_FOLDER": str(tmp_path)}
    name = f"killed-{victim}"
    (canary := tmp_path / "canary").mkdir()
    (canary / "go").touch()
    await_end(
        pool.submit(objective("compute_when_told"), vram="3GiB", env={"CARD_FOLDER": str(canary)}, study_name=name)
    )
    handle = pool.submit(objective("compute_when_told"), vram="3GiB", env=env, study_name=name)
    (file,) = await_files(tmp_path, "in-*", 1, lambda: told(handle))
    client = int(file.read_text())
    daemon = mps_of(pool)
    assert client in daemon.clients() and used_bytes() >= baseline_bytes + GIB
    supervisor = psutil.Process(daemon.worker).ppid()
    print(f"worker {daemon.worker}, supervisor {supervisor}, {daemon.left}")
    os.kill(daemon.worker if victim == "worker" else supervisor, signal.SIGKILL)
    await_gone(daemon)
    until(lambda: not alive(client), what="the client's end")
    (tmp_path / "go").touch()
    await_end(handle, 80)
    print(told(handle))
    last = handle.finished_roots()[-1]
    assert (last.state, last.value) == (COMPLETE, 1.0), told(handle)
    again = mps_of(pool, after=daemon.worker)
    assert again.folder != daemon.folder and again.worker != daemon.worker


def test_at_the_pools_end_the_card_is_as_before(started: LivePool, baseline_bytes: int) -> None:
    """Stands last: it closes the pool."""
    daemon = mps_of(started)
    started.pool.close()
    assert daemon.left == [], "the worker waits for it"
    await_back(baseline_bytes)
