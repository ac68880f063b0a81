"""Leases that shrink for a trial that waits, and grow before one must fail: real workers over a driver of our own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support.fake_nvml import GIB, FakeNvml
from support.pools import PROBE, LivePool, PoolMaker, check_invariants, facts_of, only
from support.waiting import until

from vrampool.messages import EndKind, Verdict
from vrampool.units import MIB

OBJECTIVES = Path(__file__).parents[1] / "support" / "oom_objectives.py"
FAKE_TORCH = Path(__file__).parents[1] / "support" / "fake_torch"
COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL


@pytest.fixture(scope="module")
def started(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    """One card of 12 GiB: 10.2 may be in use, 0.5 are the driver's."""
    fake = FakeNvml(tmp_path_factory.mktemp("nvml"))
    card = fake.add_card(12 * GIB)
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("shrink"))
    env = {**fake.env, "PYTHONPATH": f"{FAKE_TORCH}:{PROBE}"}
    made = maker(gpu="all", share=False, budget="85%", max_trials=4, sample_s=0.1, env=env)
    made.reserved_bytes = card.reserved_bytes
    made.device()
    yield made
    maker.close()


@pytest.fixture
def gpu(started: LivePool) -> Iterator[LivePool]:
    started.idle()
    yield started
    started.clear()


def test_a_trial_gives_back_what_it_does_not_need_when_another_waits_for_it(gpu: LivePool, tmp_path):
    """Its cache is emptied and its cap lowered while it runs; the other begins before it has ended."""
    env = {"MEETING": str(tmp_path)}
    large = gpu.submit(f"{OBJECTIVES}:warm_up_then_wait", vram="auto", env=env)
    small = gpu.submit(f"{OBJECTIVES}:neighbour", vram="2300MiB", env=env)
    first, second = only(large.wait(60)), only(small.wait(60))
    assert (first.state, second.state) == (COMPLETE, COMPLETE)
    assert second.datetime_start < first.datetime_complete, "it was admitted while the first one ran"
    facts = facts_of(first)
    assert facts.shrunk_from_bytes == facts.lease_bytes > facts.lease_at_end_bytes
    peak = 5 * GIB + 400 * MIB
    assert peak < facts.lease_at_end_bytes < 1.25 * (peak + 600 * MIB), "less than the end of exclusivity left to it"
    assert facts.cap_bytes is not None
    assert first.user_attrs["cap_bytes"] == pytest.approx(facts.cap_bytes, abs=MIB)
    assert facts.cap_bytes < facts.lease_at_end_bytes
    assert first.user_attrs["emptied"] >= 1
    assert "its lease was made smaller" in facts.story
    assert facts_of(second).lease_bytes == 2300 * MIB


def test_an_oom_by_our_own_shrinking_costs_nothing_and_is_not_repeated(gpu: LivePool, tmp_path):
    handle = gpu.run(
        f"{OBJECTIVES}:grow_after_shrinking", vram="auto", env={"MEETING": str(tmp_path)}, max_infra_retries=0
    )
    first, second = handle.trials
    facts = facts_of(first)
    assert (first.state, facts.end, facts.verdict) == (FAIL, EndKind.OOM, Verdict.SHRINK), facts.text
    assert first.user_attrs["shrunk"] and facts.shrunk_from_bytes == facts.lease_bytes
    assert second.state == COMPLETE
    assert second.user_attrs["shrunk"] is False, "it was left alone the second time"
    assert facts_of(second).request_bytes == facts.request_bytes, "and asked for no more than before"
    assert facts_of(second).shrunk_from_bytes is None
    assert handle.progress().counts == {"COMPLETE": 1}


def test_a_trial_of_which_little_is_known_is_lent_what_is_free_until_another_wants_it(gpu: LivePool, tmp_path):
    """What the first one held, and half as much, is asked for the second; it takes more in one piece, and has it."""
    env = {"MEETING": str(tmp_path)}
    handle = gpu.submit(f"{OBJECTIVES}:second_is_larger", 2, vram="auto", env=env, max_concurrent_trials=1)
    until(lambda: (tmp_path / "large").exists(), timeout_s=60, what="the second trial's memory")
    neighbour = gpu.submit(f"{OBJECTIVES}:neighbour", vram="4GiB", env=env)
    assert [trial.state for trial in neighbour.wait(60).trials] == [COMPLETE], "what it does not hold is called back"
    _, second = handle.wait(60).trials
    facts = facts_of(second)
    assert (second.state, second.value, facts.num_ooms) == (COMPLETE, 4.0, 0), facts.text
    assert facts.request_bytes is not None and facts.request_bytes < 3 * GIB
    assert facts.shrunk_from_bytes is None, "it was left with more than it had asked for"
    assert 4 * GIB < facts.lease_at_end_bytes < 6.5 * GIB
    check_invariants(gpu)


def test_a_trial_that_outgrows_its_lease_gets_more_while_there_is_room(gpu: LivePool, tmp_path):
    """It asks before it must fail: not one of its allocations does."""
    trial = only(gpu.run(f"{OBJECTIVES}:grow_step_by_step", vram="auto", env={"UP_TO": "8"}))
    facts = facts_of(trial)
    assert (trial.state, trial.value) == (COMPLETE, 8.0), facts.text
    assert facts.num_ooms == 0
    assert facts.lease_at_end_bytes >= 8 * GIB
    assert facts.peak_bytes is not None and facts.peak_bytes <= facts.lease_at_end_bytes


def test_where_there_is_no_room_it_is_told_so_and_goes_on_to_its_cap(gpu: LivePool, tmp_path):
    """A neighbour holds the rest: the wish is refused with the reason, nobody waits for anybody, nobody is harmed."""
    env = {"MEETING": str(tmp_path), "UP_TO": "8"}
    growing = gpu.submit(f"{OBJECTIVES}:grow_after_neighbour", vram="auto", env=env)
    holding = gpu.submit(f"{OBJECTIVES}:hold_until_gate", vram="5GiB", env={**env, "HOLD": "4"})
    first, second = growing.wait(60).trials
    facts = facts_of(first)
    # It had the whole card before it reported, and had that been left to it there would have been enough.
    assert (facts.end, facts.verdict) == (EndKind.OOM, Verdict.SHRINK), facts.text
    assert "cannot grow" in facts.story
    assert holding.study_name in facts.story, "it names who holds the rest"
    assert second.state == COMPLETE
    assert [trial.state for trial in holding.wait(30).trials] == [COMPLETE], "the neighbour was not harmed"
    check_invariants(gpu)
