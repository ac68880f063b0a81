"""Requests learned from parameters, held to what was promised of them, over peaks recorded on a NVIDIA H200."""

from __future__ import annotations

import pytest
from benchmarks.learning import FAMILIES, evaluate

pytest.importorskip("sklearn", reason="learning needs the extra `learn`")


@pytest.mark.parametrize("family", FAMILIES)
def test_requests_are_close_rarely_too_low_and_reserve_far_less_than_the_largest_so_far(family):
    figures = evaluate(family)
    for after, under, error in ((20, 0.08, 0.15), (80, 0.04, 0.07)):
        assert len(figures.under[after]) >= 300, "predictions"
        assert figures.under_share(after) <= under, f"too low after {after} trials"
        assert figures.median_error(after) <= error, f"median error after {after} trials"
    assert figures.reserved_part <= 0.8, "request x time, against the largest so far"
