"""Trials under NVIDIA's own MPS: real clients, held to their leases by the driver; a fault of one loses no other."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support.card import await_back, await_end, await_files, card_pool, objective, on_card, told, used_bytes, uuid
from support.card_work import CULPRIT, MOST_BYTES
from support.mps_processes import MpsProcesses, mps_of
from support.pools import LivePool, PoolMaker, facts_of, only
from support.waiting import until

from vrampool.messages import EndKind
from vrampool.units import GIB, MIB

pytestmark = on_card
#: Half a second apart.
READINGS = 8
COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL


@pytest.fixture(scope="module")
def started(
    own_settings: None, baseline_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LivePool, MpsProcesses]]:
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("mps"))
    try:
        pool = card_pool(maker, mps="on", budget="75%", max_trials=6, spares=4)
        yield pool, mps_of(pool)
    finally:
        maker.close()


@pytest.fixture
def mps(started: tuple[LivePool, MpsProcesses]) -> Iterator[tuple[LivePool, MpsProcesses]]:
    yield started
    pool, daemon = started
    print(daemon.logs())
    pool.clear()


def test_a_client_is_one_to_the_daemon_and_the_driver_holds_it_to_its_lease(
    mps: tuple[LivePool, MpsProcesses], tmp_path: Path
) -> None:
    """Past torch's allocator too. The canary runs outside, where nothing but torch's cap holds it."""
    pool, daemon = mps
    env = {"CARD_FOLDER": str(tmp_path)}
    canary = only(await_end(pool.submit(objective("tell_the_drivers_limit"), vram="2GiB", env=env)))
    facts = facts_of(canary)
    assert (facts.mps, facts.mps_reason) == (False, "its objective has not run well outside MPS yet"), facts
    assert (canary.state, canary.user_attrs["taken_bytes"], canary.user_attrs["code"]) == (COMPLETE, MOST_BYTES, 0), (
        facts
    )

    handle = pool.submit(objective("tell_the_drivers_limit"), vram="2GiB", env=env)
    (file,) = await_files(tmp_path, "in-*", 1, lambda: told(handle))
    client = json.loads(file.read_text())
    assert client["env"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M", client
    assert client["env"]["CUDA_MPS_PIPE_DIRECTORY"] == str(daemon.folder / "p"), client
    assert client["pid"] in daemon.clients(), client
    record = until(lambda: [item for item in pool.devices() if item.mps and item.mps.clients], what="one client")[0]
    assert record.mps is not None and (record.mps.state, record.mps.clients) == ("on", 1), record.mps
    # Long enough for the ledger to take the client's and the card's figures as belonging together.
    since = time.time()
    until(lambda: len(pool.history().samples(uuid(), since)) >= READINGS, what="readings of the card with the client")
    (tmp_path / "go").touch()
    trial = only(await_end(handle))
    print(told(handle), trial.user_attrs)
    assert (trial.state, trial.value, facts_of(trial).mps) == (COMPLETE, 1.0, True), told(handle)
    assert trial.user_attrs["code"] == 2, f"the driver refused, for want of memory: {trial.user_attrs}"
    assert 512 * MIB <= trial.user_attrs["taken_bytes"] < 2 * GIB, trial.user_attrs
    assert until(lambda: client["pid"] not in daemon.clients(), what="the client's leave")


def test_the_memory_of_clients_is_seen_back_at_once(mps: tuple[LivePool, MpsProcesses]) -> None:
    """MPS keeps some for itself: that is nothing a trial has left."""
    pool, _ = mps

    def releases() -> list[dict]:
        found = pool.history().releases()
        return found if len(found) >= 2 else []

    found = until(releases, timeout_s=60, what="two releases")
    print(json.dumps(found, indent=1))
    assert max(release["back_s"] for release in found) < 10, found
    assert pool.device().leftovers == ()


def test_an_illegal_access_by_one_client_loses_no_others_trial(
    mps: tuple[LivePool, MpsProcesses], tmp_path: Path
) -> None:
    """Whatever the driver tells the others: each of them completes, and who did it fails by himself."""
    pool, _ = mps
    env = {"CARD_FOLDER": str(tmp_path)}
    canary = await_end(pool.submit(objective("sweep"), vram="2GiB", env=env, points=[{"number": 50}]))
    assert [(trial.state, trial.value) for trial in canary.trials] == [(COMPLETE, 50.0)], told(canary)
    points = [{"number": number} for number in range(1, 13)]
    handle = await_end(pool.submit(objective("sweep"), 12, vram="2GiB", env=env, points=points))
    print(told(handle))
    final = {trial.params["number"]: trial for trial in handle.finished_roots()}
    wanted = {number: (COMPLETE, float(number)) for number in range(1, 13) if number != CULPRIT}
    assert {number: (trial.state, trial.value) for number, trial in final.items() if number != CULPRIT} == wanted
    culprit = facts_of(final[CULPRIT])
    assert final[CULPRIT].state == FAIL and culprit.end == EndKind.FAILED, told(handle)
    assert "illegal memory access" in culprit.text, told(handle)
    assert handle.progress().counts == {"COMPLETE": 11, "FAIL": 1}, told(handle)
    assert any(facts_of(trial).mps for trial in handle.trials), told(handle)

    harmed = [
        trial
        for trial in handle.trials
        if facts_of(trial).end != EndKind.COMPLETE and trial.number != final[CULPRIT].number
    ]
    print(f"harmed: {[(trial.number, trial.params) for trial in harmed]}")
    assert {facts_of(trial).end for trial in harmed} <= {EndKind.PREEMPTED}, "what a fault took is tried again for free"
    if harmed:
        record = until(lambda: [item for item in pool.devices() if item.mps and item.mps.outside], what="the beat")[0]
        assert record.mps is not None
        print(record.mps)
        assert record.mps.state == "on" and list(record.mps.outside) == ["card_work.py:sweep"], record.mps
        assert "took down all clients of MPS" in record.mps.outside["card_work.py:sweep"], record.mps
        for trial in harmed:
            last = final[trial.params["number"]]
            assert "left MPS" in facts_of(last).mps_reason, told(handle)
    else:
        assert culprit.mps is True, told(handle)


def test_after_a_fault_mps_serves_others_again(mps: tuple[LivePool, MpsProcesses], tmp_path: Path) -> None:
    pool, daemon = mps
    env = {"CARD_FOLDER": str(tmp_path)}
    canary = await_end(pool.submit(objective("after_the_fault"), vram="2GiB", env=env))
    handle = await_end(pool.submit(objective("after_the_fault"), 2, vram="2GiB", env=env))
    print(told(canary), told(handle), daemon.logs(), sep="\n")
    assert [trial.state for trial in canary.trials] == [COMPLETE], told(canary)
    assert [(trial.state, trial.value) for trial in handle.trials] == [(COMPLETE, 1.0)] * 2, told(handle)
    assert [facts_of(trial).mps for trial in handle.trials] == [True, True], told(handle)
    assert pool.device().mps is not None and pool.device().mps.state == "on", pool.device().mps


def test_at_the_pools_end_nothing_of_mps_is_left(started: tuple[LivePool, MpsProcesses], baseline_bytes: int) -> None:
    """Stands last: it closes the pool."""
    pool, daemon = started
    assert daemon.left and used_bytes() >= baseline_bytes
    pool.pool.close()
    assert daemon.left == [], "the worker waits for it"
    await_back(baseline_bytes)
