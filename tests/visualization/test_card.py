"""The card of a submission: pure, from a state to text and HTML."""

from __future__ import annotations

from dataclasses import replace

import pytest
from visualization.test_report import Page

from vrampool.notebook.card import CardState, RunningLine, to_html, to_text
from vrampool.units import GIB

STATE = CardState(
    study="digits",
    state="open",
    finished=63,
    wanted=100,
    waiting=1,
    counts={"COMPLETE": 48, "PRUNED": 11, "FAIL": 4},
    running=2,
    best="0.9813 (trial 41)",
    best_params={"batch": 128, "lr": 0.00312345},
    values=[0.5, 0.7, 0.6, 0.9],
    maximize=True,
    ooms=3,
    retries=2,
    trials=[RunningLine(64, "GPU 0", 2 * GIB, 3 * GIB, 12.0), RunningLine(65, "GPU 0", None, GIB, 3.0)],
    failure="ValueError: no (4 times)",
    clock="21:33:10",
)


def test_the_card_tells_progress_best_memory_and_ooms():
    text = Page(to_html(STATE)).text
    for words in (
        "63 of 100 finished",
        "48 complete",
        "11 pruned",
        "4 failed",
        "2 running",
        "1 waiting",
        "0.9813 (trial 41)",
        "batch=128, lr=0.003123",
        "2.0 GiB of 3.0 GiB leased",
        "1.0 GiB leased",
        "3 out of memory, 2 tried again",
        "fails: ValueError: no (4 times)",
        "21:33:10",
    ):
        assert words in text, words


def test_it_fetches_nothing_and_needs_no_script_or_style_sheet():
    found = to_html(STATE)
    assert Page(found).fetched == []
    assert "<style" not in found and "class=" not in found.replace('class="vrampool-card"', "")


def test_the_text_says_the_same_to_those_who_have_no_html():
    assert to_text(STATE).splitlines() == [
        "digits: open, 63/100 finished (48 complete, 4 failed, 11 pruned), 2 running",
        "best 0.9813 (trial 41) with batch=128, lr=0.003123",
        "3 out of memory, 2 tried again",
        "trial 64 on GPU 0: 2.0 GiB of 3.0 GiB leased, 12 s",
        "trial 65 on GPU 0: 1.0 GiB leased, 3 s",
        "fails: ValueError: no (4 times)",
    ]


def test_what_a_user_named_is_never_read_as_html():
    evil = "<script>alert(1)</script>"
    state = replace(STATE, study=evil, best_params={evil: evil}, failure=evil, reason=evil, note=evil)
    assert "<script" not in to_html(state)


def test_the_best_so_far_never_gets_worse():
    points = to_html(STATE).split('<polyline points="')[1].split('"')[0]
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert heights == sorted(heights, reverse=True), "up is better where it is maximized"
    down = to_html(replace(STATE, maximize=False)).split('<polyline points="')[1].split('"')[0]
    heights = [float(point.split(",")[1]) for point in down.split()]
    assert heights == sorted(heights)


def test_a_value_far_worse_than_most_does_not_press_the_others_into_a_line():
    usual = [0.3 + 0.01 * number for number in range(20)]
    for maximize, values, mark in ((False, [9.0, *usual], "&gt; "), (True, [-9.0, *usual], "&lt; ")):
        found = to_html(replace(STATE, values=values, maximize=maximize))
        assert found.count(f">{mark}") == 1, "that some are beyond is told"
        heights = [float(place.split('"')[0]) for place in found.split('cy="')[1:]]
        assert max(heights) - min(heights) > 60 and len({round(height) for height in heights}) > 10
        assert mark not in to_html(replace(STATE, values=usual, maximize=maximize))


@pytest.mark.parametrize(
    "values", [[], [0.5], [0.5, 0.5, 0.5], [float("inf"), float("nan"), 1.0], [1e300, -1e300, 0.0]]
)
def test_values_of_every_kind_are_drawn_or_left_out(values):
    found = to_html(replace(STATE, values=values))
    assert "nan" not in found and "inf" not in found


def test_a_card_stays_small_however_large_the_study():
    crowd = [RunningLine(number, "GPU 0", GIB, GIB, 1.0) for number in range(64)]
    state = replace(STATE, values=[number % 97 / 97 for number in range(10_000)], trials=crowd)
    found = to_html(state)
    assert len(found) < 40_000
    assert "and 56 more" in found
