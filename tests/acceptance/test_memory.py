"""Memory on the CPU device: measured alone, then shared; a trial that takes too much is stopped and tried with more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import FrozenTrial, TrialState
from support.pools import LivePool, PoolMaker, check_invariants, facts_of
from support.waiting import until

import vrampool
from vrampool.messages import EndKind, Verdict
from vrampool.units import MIB, format_bytes

OBJECTIVES = Path(__file__).with_name("objectives.py")
COMPLETE, FAIL, PRUNED = TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED


@pytest.fixture(scope="module")
def small_pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    """A device with 300 MiB."""
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("small"))
    yield maker(budget="300MiB")
    maker.close()


def requests(handle: vrampool.Handle) -> list[int]:
    found = [facts_of(trial).request_bytes for trial in handle.trials]
    assert None not in found
    return [request for request in found if request is not None]


def end_of(trial: FrozenTrial) -> tuple[str, str | None]:
    facts = facts_of(trial)
    return facts.end, facts.verdict


def test_a_study_of_unknown_memory_begins_alone_and_goes_on_side_by_side(pool: LivePool, tmp_path):
    """The first trial has the device to itself until it reports; then requests follow from what was measured."""
    pool.idle()
    handle = pool.run(f"{OBJECTIVES}:hold_then_meet", 4, vram="auto", env={"MEETING": str(tmp_path)})
    assert {trial.state for trial in handle.trials} == {COMPLETE}
    first, *others = handle.trials
    assert facts_of(first).request_bytes is None
    assert facts_of(first).lease_bytes == pool.device().budget_bytes, "all of the device"
    assert facts_of(first).lease_at_end_bytes < facts_of(first).lease_bytes
    assert first.user_attrs["before"] == 0
    assert all(other.datetime_start >= first.datetime_start for other in others)
    assert any(other.datetime_start < first.datetime_complete for other in others), "side by side after its report"
    # One more may have been asked for before the first was seen to run; it waits for a device of its own, too.
    sized = [facts for trial in others if (facts := facts_of(trial)).request_bytes is not None]
    assert len(sized) >= 2
    for facts in sized:
        assert facts.request_bytes is not None and facts.peak_bytes is not None
        assert 60 * MIB < facts.peak_bytes <= facts.request_bytes < pool.device().budget_bytes
        assert facts.request_reason
    check_invariants(pool)


@pytest.mark.parametrize("objective", ["hold_more", "map_shared"])
def test_a_child_over_its_lease_is_stopped_and_tried_again_with_more(small_pool: LivePool, objective):
    """It counts as out of memory, by its own fault. Shared memory too, which no limit of a process counts."""
    handle = small_pool.run(f"{OBJECTIVES}:{objective}", vram="100MiB", env={"MAP_MIB": "200"})
    *before, last = handle.trials
    assert before, "the first attempt had too little"
    for trial in before:
        facts = facts_of(trial)
        assert (trial.state, *end_of(trial)) == (FAIL, EndKind.OOM, Verdict.CULPRIT)
        assert "out of memory" in facts.text
        assert f"more than its lease of {format_bytes(facts.request_bytes)}" in facts.text
        assert facts.peak_bytes is not None and facts.peak_bytes > facts.lease_bytes
    assert last.state == COMPLETE
    # Whoever was ended just before all was taken may get the whole device in the end: a lease without a request.
    asked = [facts_of(trial).request_bytes or facts_of(trial).lease_bytes or 0 for trial in handle.trials]
    assert asked == sorted(set(asked)) and asked[0] == 100 * MIB, "each attempt with more"
    assert handle.progress().counts == {"COMPLETE": 1}
    check_invariants(small_pool)


@pytest.mark.parametrize("objective", ["allocate_for_ever", "allocate_at_once"])
def test_what_fits_no_device_is_pruned_with_a_constraint_and_not_tried_again(small_pool: LivePool, objective):
    """Larger and larger up to the whole budget, then infeasible: no value, one finished trial."""
    handle = small_pool.run(f"{OBJECTIVES}:{objective}", vram="100MiB")
    *before, last = handle.trials
    assert [end_of(trial) for trial in before] == [(EndKind.OOM, Verdict.CULPRIT)] * len(before)
    asked = [facts_of(trial).request_bytes or 0 for trial in before]
    assert asked == sorted(set(asked)) and asked[0] == 100 * MIB, "each attempt with more"
    assert facts_of(last).request_bytes is None, "and the last with a whole device"
    assert asked[-1] < facts_of(last).lease_bytes <= small_pool.device().budget_bytes
    assert_infeasible(handle)
    check_invariants(small_pool)


def test_a_trial_alone_on_its_device_is_held_to_the_budget_as_well(small_pool: LivePool):
    """It has all there is, so it is infeasible at once."""
    handle = small_pool.run(f"{OBJECTIVES}:map_shared", vram="auto", env={"MAP_MIB": "400"})
    assert len(handle.trials) == 1
    assert_infeasible(handle)
    check_invariants(small_pool)


def assert_infeasible(handle: vrampool.Handle) -> None:
    """Assert that a submission's one root trial was found to fit nowhere."""
    last = handle.trials[-1]
    assert (last.state, last.value) == (PRUNED, None)
    assert facts_of(last).end == EndKind.INFEASIBLE
    assert "out of memory with all that trials may have of a device" in facts_of(last).text
    assert last.constraints["vrampool:over_gib"] > 0
    progress = handle.progress()
    assert (progress.finished, progress.counts) == (1, {"PRUNED": 1})


def test_a_trial_that_does_not_fit_now_waits_and_says_why(small_pool: LivePool, tmp_path):
    """And a smaller one behind it goes first."""
    gate = tmp_path / "gate"
    first = small_pool.submit(f"{OBJECTIVES}:wait_for_file", vram="200MiB", env={"GATE": str(gate)})
    until(lambda: first.progress().running, what="a running trial")
    large = small_pool.submit(f"{OBJECTIVES}:one", vram="150MiB")
    small = small_pool.submit(f"{OBJECTIVES}:one", vram="60MiB")
    assert [trial.state for trial in small.wait(30).trials] == [COMPLETE]
    assert large.progress().finished == 0
    gate.touch()
    assert [trial.state for trial in large.wait(30).trials] == [COMPLETE]
    first.wait(30)
    check_invariants(small_pool)
