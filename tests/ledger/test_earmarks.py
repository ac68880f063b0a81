"""A device that is kept free for a trial: what others may still have, and what is said."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paper_card import PaperCard

from vrampool.units import GIB
from vrampool_worker.ledger import Earmark
from vrampool_worker.ledger.earmarks import room_beside

LARGE = Earmark("sub1-31", int(14.2 * GIB), "digits/31")


def ends_until_it_starts(held: list[int], order: tuple[int, ...], limit: int, *, beside: int = 0) -> int:
    """Return how many trials must end, in that order, until a trial that waits for `held <= limit` can start."""
    left = sum(held) + beside
    for ended, index in enumerate((None, *order)):
        left -= held[index] if index is not None else 0
        if left <= limit:
            return ended
    raise AssertionError("it never starts")


@given(held=st.lists(st.integers(1, 12), max_size=5), most=st.integers(1, 30), data=st.data())
def test_what_others_get_delays_it_in_no_order_of_ends_and_one_byte_more_does_in_some(held, most, data):
    request = data.draw(st.integers(1, most))
    limit, room = most - request, room_beside(held, most, request)
    orders = list(itertools.permutations(range(len(held))))
    alone = [ends_until_it_starts(held, order, limit) for order in orders]
    assert [ends_until_it_starts(held, order, limit, beside=room) for order in orders] == alone
    if room < limit:
        later = (ends_until_it_starts([*held, room + 1], (*order, len(held)), limit) for order in orders)
        assert any(one > other for one, other in zip(later, alone, strict=True))


@given(held=st.lists(st.integers(1, 9), min_size=1, max_size=5), steps=st.lists(st.integers(0, 4), max_size=4))
def test_taking_again_and_again_what_delays_nobody_still_delays_nobody(held, steps):
    most, request = 30, 18
    order = tuple(range(len(held)))
    alone, now = ends_until_it_starts(held, order, most - request), list(held)
    for wish in steps:
        if wish <= room_beside(now, most, request):
            now.append(wish)
    assert ends_until_it_starts(now, order, most - request) == alone


def test_beside_a_trial_that_wants_the_whole_device_there_is_no_room():
    assert room_beside([4], 24, None) == 0
    assert room_beside([], 24, 30) == 0, "what it cannot hold at all is not for it to give away"


def test_many_leases_of_odd_sizes_do_not_hold_up_the_loop():
    held = [GIB + 2**shift for shift in range(16)]
    assert room_beside(held, 40 * GIB, 20 * GIB) == 0
    assert room_beside([GIB] * 64, 80 * GIB, int(20.5 * GIB)) == GIB // 2


# ---- what the ledger grants ------------------------------------------------------------------------


def test_others_get_no_more_than_what_does_not_delay_it(card):
    card.start("1", 6 * GIB)
    card.start("2", 6 * GIB)
    card.start("3", 6 * GIB)
    assert card.ledger.offer(card.now_s).room_bytes == 6 * GIB
    assert card.ledger.keep_for(LARGE)
    offer = card.ledger.offer(card.now_s)
    room_bytes = 24 * GIB - LARGE.request_bytes - 6 * GIB  # one of the three may go on beside it
    assert (offer.free_bytes, offer.room_bytes) == (6 * GIB, room_bytes)
    assert not card.start("4", room_bytes + 1).granted
    assert card.start("4", room_bytes).granted
    assert not card.start("5", 1).granted
    for name in ("1", "2"):
        card.end(name)
        assert card.settle(name)
    assert card.free_bytes >= LARGE.request_bytes, "it starts when two of three have ended, as it would have without"


def test_the_trial_itself_gets_it_all_once_it_was_taken(card):
    card.ledger.keep_for(LARGE)
    assert not card.start("1", 23 * GIB).granted
    assert card.ledger.keep_for(None) and not card.ledger.keep_for(None)
    assert card.start("1", 23 * GIB).granted


def test_nothing_runs_alone_on_a_device_that_is_kept_free(card):
    card.ledger.keep_for(LARGE)
    decision = card.start("1", None)
    assert not decision.granted
    assert decision.reason == (
        "waits for a device of its own: GPU 0 is earmarked for digits/31, which waits for 14.2 GiB: "
        "GPU 0 has 24.0 GiB free of its 24.0 GiB"
    )


def test_a_lease_does_not_grow_into_what_is_kept_free(card):
    card.start("1", 6 * GIB)
    card.start("2", 12 * GIB)
    card.ledger.keep_for(LARGE)
    room_bytes = 24 * GIB - LARGE.request_bytes - 6 * GIB
    decision = card.ledger.grow("1", 12 * GIB, card.now_s)
    assert decision.lease_bytes == 6 * GIB + room_bytes
    assert "earmarked for digits/31" in decision.reason
    assert not card.ledger.grow("2", 13 * GIB, card.now_s).granted


def test_use_that_nobody_explains_yet_is_not_given_to_others_either(card):
    card.start("1", 6 * GIB)
    card.pass_time(5)
    card.ledger.keep_for(LARGE)
    before_bytes = card.ledger.offer(card.now_s).room_bytes
    card.strangers_bytes = GIB
    card.look()
    assert card.ledger.offer(card.now_s).room_bytes == before_bytes - GIB


def test_what_a_device_could_hold_without_trials_is_told_in_every_state(card):
    card.strangers_bytes = 2 * GIB
    card.driver_reserved_bytes = GIB
    card.look()
    card.start("1", None)
    assert card.ledger.most_bytes(card.now_s) == 21 * GIB
    card.ledger.pause("by hand")
    assert card.ledger.most_bytes(card.now_s) == 21 * GIB


# ---- what is said ----------------------------------------------------------------------------------


def test_everybody_who_waits_is_told_for_whom_the_device_is_kept_free():
    card = PaperCard(budget_bytes=int(20.4 * GIB))
    card.look()
    card.start("1", 6 * GIB)
    card.ledger.keep_for(LARGE)
    sentence = (
        "waits for 7.0 GiB: GPU 0 is earmarked for digits/31, which waits for 14.2 GiB: "
        "GPU 0 has 14.4 GiB free of its 20.4 GiB (1 trial holds 6.0 GiB)"
    )
    assert card.ledger.explain(7 * GIB, card.now_s) == sentence
    assert card.start("2", 7 * GIB).reason == sentence
    assert card.ledger.offer(card.now_s).reason == sentence.removeprefix("waits for 7.0 GiB: ")
    card.ledger.keep_for(None)
    assert "earmarked" not in card.ledger.offer(card.now_s).reason


def test_the_last_decision_about_each_trial_is_kept_in_words(card):
    card.start("1", None, uses_bytes=4 * GIB)
    assert card.ledger.said("1") == "runs alone on GPU 0 until its memory is known"
    card.pass_time(5)
    card.ledger.report_first("1", 4 * GIB, card.now_s)
    assert card.ledger.said("1").startswith("runs alone no longer")
    card.ledger.grow("1", 40 * GIB, card.now_s)
    assert card.ledger.said("1").startswith("grew only to 24.0 GiB of 40.0 GiB asked for")
    card.ledger.shrink("1", 8 * GIB, card.now_s)
    assert card.ledger.said("1") == "gave back 16.0 GiB"
    card.ledger.grow("1", 8 * GIB, card.now_s)
    assert card.ledger.said("1") == "gave back 16.0 GiB", "what changed nothing is not worth a word"
    assert card.start("2", 2 * GIB).granted
    assert card.ledger.said("2").startswith("gets 2.0 GiB; GPU 0 has 14.0 GiB free")
    assert card.ledger.said("nonesuch") == ""


@pytest.mark.parametrize("act", ["quarantine", "blind"])
def test_a_device_that_is_stopped_says_so_first(card, act):
    card.ledger.keep_for(LARGE)
    getattr(card.ledger, act)("by the test", card.now_s)
    assert "by the test" in card.ledger.explain(GIB, card.now_s)
