"""Which trial needs no less than which, by what was seen of each parameter."""

from __future__ import annotations

from vrampool.memory.dominance import largest_of_less, needs_no_less
from vrampool.memory.peaks import PastPeak

GROWS = {"batch": 1, "pieces": -1, "lr": 0, "model": None}
SMALL = {"batch": 32, "pieces": 4, "lr": 0.1, "model": "a"}


def test_larger_where_memory_grows_and_smaller_where_it_shrinks_is_no_less():
    assert needs_no_less({**SMALL, "batch": 64, "pieces": 2, "lr": 0.5}, SMALL, GROWS)
    assert not needs_no_less({**SMALL, "batch": 16}, SMALL, GROWS)
    assert not needs_no_less({**SMALL, "batch": 64, "pieces": 8}, SMALL, GROWS)


def test_of_a_parameter_that_is_not_known_only_the_same_value_will_do():
    assert not needs_no_less({**SMALL, "model": "b"}, SMALL, GROWS)
    assert needs_no_less(SMALL, SMALL, {})
    assert not needs_no_less({**SMALL, "batch": 64}, SMALL, {})
    assert not needs_no_less({**SMALL, "batch": True}, {**SMALL, "batch": 1}, {})


def test_a_trial_that_lacks_a_parameter_is_another_matter():
    assert not needs_no_less({"batch": 64}, {"batch": 32, "extra": 1}, GROWS)
    assert needs_no_less({"batch": 64}, {"batch": 32, "lr": 1}, GROWS)


def test_the_largest_of_those_that_are_no_larger_counts():
    peaks = [PastPeak(size, params={**SMALL, "batch": batch}) for size, batch in ((5, 16), (7, 32), (9, 64))]
    found = largest_of_less({**SMALL, "batch": 48}, peaks, GROWS)
    assert found is not None and found.peak_bytes == 7
    assert largest_of_less({**SMALL, "batch": 8}, peaks, GROWS) is None
