"""Which leases are cut for a trial that waits, and how far."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vrampool.units import GIB, MIB
from vrampool_worker.ledger.shrinking import LEAST_CUT_BYTES, Candidate, Cut, floor_of, plan_cuts
from vrampool_worker.ledger.strangers import NOISE_BYTES


def lease(name: str, lease_gib: float, floor_gib: float) -> Candidate:
    return Candidate(name, int(lease_gib * GIB), int(floor_gib * GIB))


def test_the_lease_with_the_most_to_give_is_cut_and_only_as_far_as_needed():
    cuts = plan_cuts(2 * GIB, [lease("a", 6, 5), lease("b", 10, 4)])
    assert cuts == [Cut("b", 8 * GIB - NOISE_BYTES)]


def test_several_are_cut_when_one_does_not_suffice():
    cuts = plan_cuts(3 * GIB, [lease("a", 6, 4), lease("b", 10, 8), lease("c", 3, 2.9)])
    assert [cut.lease_id for cut in cuts] == ["a", "b"]
    assert cuts[0].to_bytes == 4 * GIB, "all that the first has to give"


def test_nothing_is_cut_in_vain():
    assert plan_cuts(5 * GIB, [lease("a", 6, 4), lease("b", 10, 8)]) == []
    assert plan_cuts(0, [lease("a", 6, 4)]) == []


def test_what_is_not_worth_an_emptied_cache_does_not_count():
    almost = Candidate("a", GIB, GIB - LEAST_CUT_BYTES + 1)
    assert almost.slack_bytes == 0
    assert plan_cuts(MIB, [almost]) == []


@given(
    missing_bytes=st.integers(1, 40 * GIB),
    leases=st.lists(st.tuples(st.integers(0, 20 * GIB), st.integers(0, 20 * GIB)), max_size=6),
)
def test_a_plan_frees_enough_and_goes_below_no_floor(missing_bytes: int, leases: list[tuple[int, int]]):
    candidates = [Candidate(str(number), most, floor) for number, (most, floor) in enumerate(leases)]
    by_id = {item.lease_id: item for item in candidates}
    cuts = plan_cuts(missing_bytes, candidates)
    assert all(cut.to_bytes >= by_id[cut.lease_id].floor_bytes for cut in cuts)
    freed_bytes = sum(by_id[cut.lease_id].lease_bytes - cut.to_bytes for cut in cuts)
    assert freed_bytes >= missing_bytes if cuts else sum(item.slack_bytes for item in candidates) < missing_bytes


@pytest.mark.parametrize(
    ("peak_bytes", "overhead_bytes"), [(20 * GIB, 780 * MIB), (900 * MIB, 780 * MIB), (300 * MIB, 0), (100, 780 * MIB)]
)
def test_a_trial_is_left_with_its_peak_and_a_margin_that_does_not_have_it_ask_again(peak_bytes, overhead_bytes):
    """It asks to grow at 90 % of its cap; at its old peak it must not."""
    floor_bytes = floor_of(peak_bytes, overhead_bytes)
    own_bytes, cap_bytes = peak_bytes - overhead_bytes, floor_bytes - overhead_bytes
    assert floor_bytes % MIB == 0 and floor_bytes > peak_bytes
    assert own_bytes < 0.9 * cap_bytes or cap_bytes <= 64 * MIB
    assert floor_bytes <= 1.15 * peak_bytes + 65 * MIB
