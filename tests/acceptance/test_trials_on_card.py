"""Trials of one pool on a real card: no neighbour is harmed, all memory comes back, leases shrink while trials run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support import commands
from support.card import (
    await_back,
    await_end,
    await_files,
    card_pool,
    memory,
    objective,
    on_card,
    told,
    used_bytes,
    uuid,
)
from support.child_driver import alive
from support.pools import LivePool, PoolMaker, facts_of, only
from support.waiting import until

from vrampool.messages import EndKind, Verdict
from vrampool.units import GIB, MIB

pytestmark = on_card
COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL


@pytest.fixture(scope="module")
def started(own_settings: None, baseline_bytes: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("card"))
    try:
        yield card_pool(maker, max_trials=4, spares=2, budget="85%")
    finally:
        maker.close()


@pytest.fixture
def gpu(started: LivePool, baseline_bytes: int) -> Iterator[LivePool]:
    await_back(baseline_bytes)
    yield started
    started.clear()


def test_status_tells_the_card_its_budget_and_all_its_figures(gpu: LivePool) -> None:
    done = until(lambda: _status(gpu), timeout_s=20, what="a status with the first reading")
    (device,) = done["devices"]
    total_bytes = memory().total
    print(json.dumps(device, indent=1))
    assert (device["device_id"], device["device_kind"]) == (uuid(), "cuda")
    assert device["device_name"].startswith("GPU 0 (NVIDIA")
    assert device["total_bytes"] == total_bytes
    assert device["budget_bytes"] == pytest.approx(0.85 * total_bytes, rel=0.001)
    driver_bytes = device["budget_bytes"] - device["grantable_bytes"]
    assert driver_bytes == pytest.approx(memory().reserved, abs=64 * MIB) and driver_bytes > 64 * MIB, "not the pool's"
    assert device["unknown"] == [] and device["leftovers"] == []
    assert (device["state"], device["mps"]) == ("ready", None)


def _status(pool: LivePool) -> dict | None:
    done = commands.run("status", "--json", "--state-dir", pool.state_dir)
    assert done.code == 0, done
    return done.json if done.json["devices"] and done.json["devices"][0]["grantable_bytes"] else None


def test_workspaces_that_cudnn_did_without_are_no_errors_of_the_trial(gpu: LivePool) -> None:
    """Each is an out-of-memory error of the allocator that never reaches the objective. How tight is tight enough?"""
    pytest.importorskip("torchvision")
    squeezed = []
    for mib in (6600, 6400, 6200, 6000, 5800):
        handle = await_end(gpu.submit(objective("convolve_in_a_small_lease"), vram=mib * MIB))
        print(told(handle))
        first = facts_of(handle.trials[0])
        assert first.verdict != Verdict.SWALLOWED, told(handle)
        if first.end == EndKind.COMPLETE and first.num_ooms:
            squeezed.append(first)
            break
    if not squeezed:
        pytest.skip("no lease was met in which cuDNN did with less")
    assert f"{squeezed[0].num_ooms} of them in a library that then did with less" in squeezed[0].story


def test_an_error_that_the_objective_catches_itself_is_told_and_tried_again(gpu: LivePool) -> None:
    handle = await_end(gpu.submit(objective("swallow_an_error"), vram="4GiB"))
    first, second = handle.trials
    assert (first.state, facts_of(first).verdict, facts_of(first).num_ooms) == (FAIL, Verdict.SWALLOWED, 1), told(
        handle
    )
    assert (second.state, second.value) == (COMPLETE, 8.0), told(handle)


def test_one_that_takes_too_much_fails_alone_and_is_tried_again_with_more(gpu: LivePool, tmp_path: Path) -> None:
    env = {"CARD_FOLDER": str(tmp_path)}
    beside = gpu.submit(objective("work_beside"), vram="4GiB", env=env)
    await_files(tmp_path, "beside", 1, lambda: told(beside))
    greedy = await_end(gpu.submit(objective("ask_too_much"), vram="4GiB", env={**env, "ASK": "8"}))
    (tmp_path / "go").touch()
    await_end(beside)
    print(told(beside), told(greedy), sep="\n")
    first, last = greedy.trials[0], greedy.trials[-1]
    facts = facts_of(first)
    assert (first.state, facts.end, facts.verdict) == (FAIL, EndKind.OOM, Verdict.CULPRIT), told(greedy)
    assert facts.asked_bytes == 8 * GIB and facts.lease_bytes == 4 * GIB, told(greedy)
    assert beside.study_name in facts.story, "the neighbour is named"
    assert len(greedy.trials) == 2 and (last.state, last.value) == (COMPLETE, 9.0), told(greedy)
    assert facts_of(last).lease_bytes >= 9 * GIB, told(greedy)
    neighbour = only(beside)
    assert (neighbour.state, neighbour.value) == (COMPLETE, 1.0), told(beside)
    assert facts_of(neighbour).num_ooms == 0 and neighbour.user_attrs["steps"] > 0, told(beside)
    assert neighbour.datetime_complete > last.datetime_complete, "it was there all the time"


def test_a_grandchild_in_a_session_of_its_own_gives_its_memory_back_too(
    gpu: LivePool, baseline_bytes: int, tmp_path: Path
) -> None:
    handle = gpu.submit(objective("leave_a_grandchild"), vram="4GiB", env={"CARD_FOLDER": str(tmp_path)})
    (file,) = await_files(tmp_path, "grandchild", 1, lambda: told(handle))
    grandchild = int(file.read_text())
    assert alive(grandchild) and used_bytes() >= baseline_bytes + GIB
    (tmp_path / "go").touch()
    trial = only(await_end(handle))
    assert (trial.state, trial.value) == (COMPLETE, 1.0), told(handle)
    assert not alive(grandchild), "it ends before the trial is told"
    release = until(lambda: gpu.history().releases(handle.study_name), timeout_s=40, what="the release")[0]
    print(release)
    assert release["residue_bytes"] < 64 * MIB and release["back_s"] < 10, release
    await_back(baseline_bytes)
    assert gpu.device().leftovers == ()


def test_one_of_which_nothing_is_known_has_the_card_alone_until_it_reports(gpu: LivePool, tmp_path: Path) -> None:
    env = {"CARD_FOLDER": str(tmp_path)}
    unknown = gpu.submit(objective("report_when_told"), vram="auto", env=env)
    await_files(tmp_path, "holds", 1, lambda: told(unknown))
    small = gpu.submit(objective("begin"), vram="2GiB", env=env)
    record = until(lambda: [item for item in gpu.devices() if item.running], what="the worker's word")[0]
    assert [item.study for item in record.running] == [unknown.study_name], record
    assert record.open_bytes < 2 * GIB, record
    assert not (tmp_path / "neighbour").exists()
    (tmp_path / "report").touch()
    await_end(unknown), await_end(small)
    print(told(unknown), told(small), sep="\n")
    first, second = only(unknown), only(small)
    assert (first.state, second.state) == (COMPLETE, COMPLETE), told(unknown)
    assert second.datetime_start < first.datetime_complete, "it was admitted while the first one ran"
    facts = facts_of(first)
    assert facts.request_bytes is None and facts.shrunk_from_bytes == facts.lease_bytes, told(unknown)
    assert facts.shrunk_from_bytes > 0.6 * memory().total, told(unknown)
    assert facts.peak_bytes is not None and GIB < facts.peak_bytes <= facts.lease_at_end_bytes < 8 * GIB, told(unknown)
    again = only(await_end(gpu.submit(objective("begin"), vram="auto", study_name=small.study_name, env=env)))
    assert again.state == COMPLETE, "the same study goes on, with what was learned of it"
