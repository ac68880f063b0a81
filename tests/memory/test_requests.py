"""How much memory a trial is started with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vrampool.errors import RequestError
from vrampool.memory import PastPeak, check_fits, lease_after_first_report, next_request, parse_vram
from vrampool.memory.requests import beside_others
from vrampool.units import GIB, MIB

peaks = st.lists(st.builds(PastPeak, st.integers(1, 200 * GIB), st.booleans(), st.none()), max_size=20)


@pytest.mark.parametrize(
    ("value", "expected"), [("auto", None), (" Auto ", None), (None, None), ("6GiB", 6 * GIB), (500, 500)]
)
def test_what_a_submission_declares_is_auto_or_a_size(value, expected):
    assert parse_vram(value) == expected


@pytest.mark.parametrize("value", ["six", "6 parsecs", 0, -1, True, 1.5, "0GiB"])
def test_anything_else_is_refused_with_both_ways_named(value):
    with pytest.raises(RequestError, match=r"vram .*'auto'"):
        parse_vram(value)


def test_a_declared_request_is_taken_as_it_is():
    request = next_request("6GiB", [PastPeak(20 * GIB)])
    assert (request.request_bytes, request.reason) == (6 * GIB, "6.0 GiB declared by the submission")


def test_of_an_unknown_study_the_trial_runs_alone():
    request = next_request("auto", [])
    assert request.request_bytes is None
    assert "alone on a device" in request.reason


def test_a_trial_that_failed_at_its_first_line_says_nothing_of_the_next():
    """It held a few MiB; a request from that would make the next one fail for want of memory."""
    assert next_request("auto", [PastPeak(12 * MIB, censored=True)]).request_bytes is None


def test_few_peaks_get_a_wide_margin_and_many_a_small_one():
    assert next_request("auto", [(4 * GIB, False)]).request_bytes == 6 * GIB
    assert next_request("auto", [(4 * GIB, False)] * 5).request_bytes == 5 * GIB


def test_the_largest_peak_counts():
    assert next_request("auto", [(GIB, False), (4 * GIB, False), (2 * GIB, False)]).request_bytes == 6 * GIB


def test_a_peak_cut_short_below_the_largest_adds_nothing():
    past = [(4 * GIB, False)] * 5
    assert next_request("auto", [*past, (3 * GIB, True)]) == next_request("auto", past)


def test_a_peak_cut_short_above_the_largest_is_a_lower_bound():
    request = next_request("auto", [(2 * GIB, False)] * 5 + [(8 * GIB, True)])
    assert request.request_bytes == 12 * GIB
    assert "ended early" in request.reason


def test_the_margin_is_not_taken_of_the_overhead():
    assert next_request("auto", [(5 * GIB, False)], GIB).request_bytes == GIB + 6 * GIB


def test_tiny_peaks_get_a_margin_in_bytes():
    assert next_request("auto", [(10 * MIB, False)]).request_bytes == (10 + 256) * MIB


@given(peaks)
def test_a_request_is_above_every_peak_seen(past):
    request = next_request("auto", past)
    if request.request_bytes is not None:
        assert request.request_bytes > max(peak.peak_bytes for peak in past)
    assert request.reason


@given(peaks, st.integers(1, 200 * GIB))
def test_a_larger_peak_never_makes_the_request_smaller(past, peak_bytes):
    base = [PastPeak(GIB)] * 5
    before = next_request("auto", [*base, *past]).request_bytes
    after = next_request("auto", [*base, *past, PastPeak(peak_bytes)]).request_bytes
    largest = max(peak.peak_bytes for peak in [*base, *past])
    assert peak_bytes <= largest or after >= peak_bytes
    assert before >= largest


def test_parameters_may_be_given_already():
    assert next_request("auto", [(GIB, False)], params={"width": 8}, distributions={}).request_bytes == 3 * GIB // 2


def test_a_request_beyond_every_device_is_refused_with_both_sizes():
    with pytest.raises(RequestError, match=r"8\.8 GiB.*7\.8 GiB"):
        check_fits(9000 * MIB, 8000 * MIB)
    check_fits(8000 * MIB, 8000 * MIB)
    check_fits(None, 1)
    check_fits(9000 * MIB, None)


@given(st.integers(1, 200 * GIB))
def test_the_lease_after_the_first_report_leaves_room_to_grow(peak_bytes):
    assert peak_bytes + 256 * MIB <= lease_after_first_report(peak_bytes) <= peak_bytes * 1.25 + 257 * MIB


@pytest.mark.parametrize(
    ("past", "overhead", "words"),
    [
        ([(4 * GIB, False)], None, "the largest peak of 1 trial, 4.0 GiB, and 50 % more"),
        ([(4 * GIB, False)] * 5, None, "the largest peak of 5 trials, 4.0 GiB, and 25 % more"),
        ([(5 * GIB, False)], GIB, "5.0 GiB, and 50 % of what is beyond a process's own more"),
        ([(174 * MIB, False)], None, "174 MiB, and 256 MiB more, the least margin"),
        ([(2 * GIB, False), (8 * GIB, True)], None, "8.0 GiB reached by a trial that ended early, and 50 % more"),
    ],
)
def test_the_reason_says_what_was_really_added(past, overhead, words):
    assert next_request("auto", past, overhead).reason.endswith(words)


@pytest.mark.parametrize(
    ("asked", "predicted", "largest", "expected"),
    [
        (3 * GIB, 2 * GIB, 20 * GIB, 3 * GIB),  # as much again of little is little
        (18 * GIB, 9 * GIB, None, 18 * GIB),  # no device was seen yet
        (8 * GIB, 4 * GIB, 20 * GIB, 6 * GIB),  # a tenth of the device, however unsure
        (20 * GIB, 12 * GIB, 20 * GIB, 15 * GIB),  # a quarter of what it needs, which is more
        (11 * GIB, 10 * GIB, 20 * GIB, 11 * GIB),  # a small margin stays
        (19 * GIB, 14 * GIB, 20 * GIB, int(17.5 * GIB)),  # what is left is enough for small ones
        (19 * GIB, 16 * GIB, 20 * GIB, 19 * GIB),  # nothing to speak of would fit beside it
        (60 * GIB, 30 * GIB, 20 * GIB, 60 * GIB),  # it needs more than there is
    ],
)
def test_doubt_alone_keeps_nobody_from_a_device(asked, predicted, largest, expected):
    assert beside_others(asked, predicted, largest) == expected
