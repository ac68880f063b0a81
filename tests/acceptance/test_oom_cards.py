"""Cards as they are in the field: A04, A06, A08 to A10, A39 to A41 and A50, with real workers on the stub driver."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState
from support import commands
from support.fake_nvml import NOT_SUPPORTED, FakeNvml
from support.pools import LivePool, PoolMaker, check_invariants, facts_of, only
from support.waiting import until

from vrampool.messages import EndKind
from vrampool.units import MIB

OBJECTIVES = Path(__file__).with_name("card_objectives.py")
COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL
TOTAL = 8000 * MIB
GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    """One card of 8000 MiB, all of it the budget's."""
    made = FakeNvml(tmp_path_factory.mktemp("nvml"))
    made.add_card(TOTAL, reserved_bytes=0)
    return made


@pytest.fixture(scope="module")
def started(own_settings: None, fake: FakeNvml, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("cards"))
    made = maker(gpu="all", share=False, budget="100%", max_trials=4, sample_s=0.1, env=fake.env)
    made.device()
    yield made
    maker.close()


@pytest.fixture
def gpu(started: LivePool) -> Iterator[LivePool]:
    started.idle()
    yield started
    started.clear()


# Strangers count at their largest of the last minute, so the tests stand in the order in which they grow.


def test_a10_frameworks_do_not_take_the_whole_card_unless_the_user_says_so(gpu: LivePool):
    ours = only(gpu.run(f"{OBJECTIVES}:tell_preallocation", vram="1GiB"))
    assert ours.user_attrs["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert ours.user_attrs["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
    his = only(gpu.run(f"{OBJECTIVES}:tell_preallocation", vram="1GiB", env=env))
    assert his.user_attrs["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true", "a value the user set himself wins"


def test_a04_what_a_killed_trial_has_started_ends_before_its_lease_is_returned(gpu: LivePool, tmp_path):
    handle = gpu.run(
        f"{OBJECTIVES}:leave_holders_and_die", vram="4000MiB", env={"MEETING": str(tmp_path)}, max_infra_retries=1
    )
    assert [trial.state for trial in handle.trials] == [FAIL, FAIL], "the infra retry, and no more"
    for trial in handle.trials:
        assert facts_of(trial).end == EndKind.CRASHED
        assert "signal 9" in facts_of(trial).text
    releases = until(
        lambda: len(found := gpu.history().releases(handle.study_name)) == 2 and found, what="two releases"
    )
    for release in releases:
        assert release["used_after_bytes"] == 0 and release["residue_bytes"] == 0
    assert max(facts_of(trial).peak_bytes or 0 for trial in handle.trials) in (0, 2048 * MIB)
    check_invariants(gpu)


def test_a50_the_kernels_own_kill_is_told_as_host_memory_and_raises_no_request(gpu: LivePool):
    """In a control group with a limit, as a container is."""
    group = GROUPS / f"vrampool-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(64 * MIB))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"control groups cannot be made here: {error}")
    try:
        handle = gpu.run(
            f"{OBJECTIVES}:outgrow_its_control_group", vram="500MiB", env={"GROUP": str(group)}, max_infra_retries=1
        )
        neighbour = only(gpu.run(f"{OBJECTIVES}:tell_card", vram="1GiB"))
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), what="an empty group")
        group.rmdir()
    assert [trial.state for trial in handle.trials] == [FAIL, FAIL]
    for trial in handle.trials:
        facts = facts_of(trial)
        assert (facts.end, facts.signal, facts.request_bytes) == (EndKind.CRASHED, 9, 500 * MIB)
        assert "killed by signal 9 (SIGKILL): host memory ran out" in facts.text
    assert neighbour.state == COMPLETE, "the worker lives"


def test_a08_memory_that_comes_back_late_is_waited_for(gpu: LivePool, fake: FakeNvml):
    """6000 of 8000 MiB stay in use for 2 s after a trial's end: the next one starts when they are back."""
    fake.forget_the_dead()
    fake.set_linger(0, 2)
    handle = gpu.run(f"{OBJECTIVES}:hold_a_while", 3, vram="6000MiB", env={"HOLD": "6000"})
    fake.set_linger(0, 0)
    trials = sorted(handle.trials, key=lambda trial: trial.datetime_start)
    assert [trial.state for trial in trials] == [COMPLETE] * 3
    for before, after in itertools.pairwise(trials):
        assert (after.datetime_start - before.datetime_complete).total_seconds() >= 1.9
    check_invariants(gpu)


def test_a08_memory_that_does_not_come_back_stops_only_what_needs_it(gpu: LivePool, fake: FakeNvml):
    fake.forget_the_dead()
    fake.set_linger(0, None)
    first = gpu.run(f"{OBJECTIVES}:hold_a_while", vram="6000MiB", env={"HOLD": "6000"})
    large = gpu.submit(f"{OBJECTIVES}:hold_a_while", vram="6000MiB", env={"HOLD": "100"})
    small = gpu.run(f"{OBJECTIVES}:hold_a_while", vram="1900MiB", env={"HOLD": "0"})
    assert only(small).state == COMPLETE, "what fits into the rest is run"
    assert large.progress().finished == 0, "it waits, and fails nobody"
    log = (gpu.folder / "state" / "logs" / "worker.log").read_text()
    assert log.count("still in use") <= 2, "it is said, and not at every look"
    fake.set_linger(0, 0)
    assert only(large.wait(40)).state == COMPLETE, "and goes on when it is back"
    assert only(first).state == COMPLETE


@pytest.mark.slow
def test_a09_two_at_a_time_beside_a_desktop_and_none_more_beside_a_stranger(gpu: LivePool, fake: FakeNvml, tmp_path):
    fake.set_used(0, 700 * MIB)
    until(lambda: gpu.device().free_bytes <= TOTAL - 700 * MIB, what="a worker that sees the desktop")
    env = {"MEETING": str(tmp_path), "HOLD": "3400", "COMPANY": "2"}
    handle = gpu.run(f"{OBJECTIVES}:hold_in_company", 4, vram="3500MiB", env=env)
    assert [trial.state for trial in handle.trials] == [COMPLETE] * 4
    assert max(trial.value for trial in handle.trials) == 2.0, "two, and never three"
    gate = tmp_path / "gate"
    first = gpu.submit(f"{OBJECTIVES}:hold_in_company", vram="3500MiB", env={**env, "COMPANY": "0", "GATE": str(gate)})
    until(lambda: first.progress().running, what="a running trial")
    fake.set_used(0, 5000 * MIB)
    until(lambda: gpu.device().free_bytes == 0, what="a worker that sees the stranger")
    second = gpu.submit(f"{OBJECTIVES}:hold_in_company", vram="3500MiB", env=env)
    gate.touch()
    assert only(first.wait(30)).state == COMPLETE, "what runs is left alone"
    gpu.idle()
    assert only(gpu.run(f"{OBJECTIVES}:tell_card", vram="1GiB")).state == COMPLETE, "what fits beside him is run"
    assert (second.progress().running, second.progress().finished) == (0, 0), "no new one of 3500 starts, or fails"
    second.cancel("the stranger counts for a minute after he left; `ledger/test_strangers.py` has that")
    second.wait(20)


def test_a40_without_a_process_list_the_cards_figures_decide_and_a_peak_is_unknown(
    gpu: LivePool, fake: FakeNvml, tmp_path
):
    """And a pid of another namespace that looks like ours is only a number."""
    worker = gpu.device().pid
    fake.set_used(0, 0)
    fake.add_process(0, 31337, 4200 * MIB, alive=False)
    fake.add_process(0, worker, 9 * MIB, alive=False)
    fake.hide_processes(0)
    until(lambda: gpu.device().free_bytes < 2 * 2900 * MIB, what="a worker that has seen what others hold")
    env = {"MEETING": str(tmp_path), "HOLD": "0", "STAY_S": "0.5"}
    handle = gpu.run(f"{OBJECTIVES}:hold_in_company", 2, vram="2900MiB", env=env)
    assert [(trial.state, trial.value) for trial in handle.trials] == [(COMPLETE, 1.0)] * 2, "one at a time"
    assert [facts_of(trial).peak_bytes for trial in handle.trials] == [None, None], "unknown, not 0"
    assert "What it held is not known" in facts_of(handle.trials[0]).story
    assert psutil.pid_exists(worker) and gpu.device().pid == worker


# ---- pools of their own ------------------------------------------------------------------------------


def test_a06_a_mask_of_uuids_binds_the_worker_and_its_trials_to_that_card(make_pool: PoolMaker, tmp_path):
    """Here a prefix of the second card's; the others are in `devices/test_selection.py`."""
    two = FakeNvml(tmp_path / "nvml")
    two.add_card(TOTAL)
    second = two.add_card(TOTAL)
    masked = make_pool(gpu="all", share=False, budget="85%", env={**two.env, "CUDA_VISIBLE_DEVICES": second.uuid[:12]})
    assert [device.device_id for device in [masked.device()]] == [second.uuid]
    trial = only(masked.run(f"{OBJECTIVES}:tell_card", vram="1GiB"))
    assert trial.user_attrs["card"] == second.uuid, "exactly one device, named by its UUID"
    for hidden in ("", "-1"):
        done = commands.finish(
            commands.start(
                *("run", f"{OBJECTIVES}:tell_card", "--trials", "1", "--gpu", "all", "--state-dir", tmp_path / "none"),
                env={**two.env, "CUDA_VISIBLE_DEVICES": hidden},
            )
        )
        assert done.code == 2, done
        assert "hides every GPU" in done.err and "Traceback" not in done.err


@pytest.mark.slow
def test_a39_a_card_that_does_not_tell_its_memory_needs_its_size_and_is_managed_by_bookkeeping(
    make_pool: PoolMaker, tmp_path
):
    untold = FakeNvml(tmp_path / "nvml")
    card = untold.add_card(TOTAL)
    untold.fail(card.uuid, NOT_SUPPORTED, "memory")
    refused = commands.finish(
        commands.start(
            *("run", f"{OBJECTIVES}:tell_card", "--trials", "1", "--gpu", "all", "--state-dir", tmp_path / "none"),
            env=untold.env,
        )
    )
    assert refused.code == 2 and "--vram-total" in refused.err and "Traceback" not in refused.err, refused
    booked = make_pool(gpu="all", share=False, budget="100%", vram_total="8000MiB", env=untold.env)
    env = {"MEETING": str(tmp_path), "HOLD": "0", "COMPANY": "2"}
    handle = booked.run(f"{OBJECTIVES}:hold_in_company", 3, vram="3500MiB", env=env)
    assert [trial.state for trial in handle.trials] == [COMPLETE] * 3
    assert max(trial.value for trial in handle.trials) == 2.0, "two fit into 8000 MiB, by the books"
    log = (booked.folder / "state" / "logs" / "worker.log").read_text()
    assert log.count("does not tell its memory") <= 2, "the pool's host and its worker say so, once each"


@pytest.mark.slow
def test_a41_a_card_that_is_lost_takes_no_more_and_its_trials_are_run_elsewhere(make_pool: PoolMaker, tmp_path):
    two = FakeNvml(tmp_path / "nvml")
    lost, good = two.add_card(TOTAL), two.add_card(TOTAL)
    pool = make_pool(gpu="all", share=False, budget="85%", max_trials=2, sample_s=0.1, env=two.env)
    until(lambda: len(pool.devices()) == 2, what="two workers", timeout_s=60)
    tries = tmp_path / "tries"
    handle = pool.submit(f"{OBJECTIVES}:count_tries", 12, vram="1GiB", env={"TRIES": str(tries)})
    until(lambda: tries.exists() and lost.uuid in tries.read_text(), what="a trial on the card")
    two.fail(lost.uuid)
    handle.wait(60)
    ends = [facts_of(trial) for trial in handle.trials]
    assert sum(trial.state == COMPLETE for trial in handle.trials) == 12
    assert {facts.device for facts in ends if facts.end == EndKind.COMPLETE} >= {good.uuid}
    gone = [facts for facts in ends if facts.end != EndKind.COMPLETE]
    assert {(facts.end, facts.device) for facts in gone} <= {(EndKind.DEVICE_LOST, lost.uuid)}
    assert len(gone) <= 4, "no black hole"
    assert handle.progress().counts == {"COMPLETE": 12}
