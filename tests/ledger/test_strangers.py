"""Programs on the device that are not ours: seen, believed late, held for a while; and never made up."""

from __future__ import annotations

import pytest
from support.paper_card import PaperCard

from vrampool.units import GIB, MIB


def test_with_no_trial_alive_use_is_a_strangers_at_once(card):
    card.strangers_bytes = 5 * GIB
    card.look()
    assert (card.ledger.strangers_bytes, card.free_bytes) == (5 * GIB, 19 * GIB)


def test_our_own_trial_that_grows_5_gib_between_two_readings_makes_no_stranger(card):
    """The device is read just after it grew, its own report is from before."""
    card.start("1", 10 * GIB, uses_bytes=GIB)
    card.pass_time(5)
    card.holds["1"] = 6 * GIB
    card.pass_time(0.5)
    assert card.ledger.strangers_bytes == 0
    card.figures["1"] = 6 * GIB
    card.pass_time(0.5)
    assert card.ledger.strangers_bytes == 0
    card.pass_time(120)
    assert (card.ledger.strangers_bytes, card.free_bytes) == (0, 14 * GIB)


def test_nor_does_one_whose_report_comes_later_than_the_next_reading(card):
    card.start("1", 10 * GIB, uses_bytes=GIB)
    card.pass_time(5)
    card.holds["1"] = 6 * GIB
    card.pass_time(1.5)
    card.figures["1"] = 6 * GIB
    card.pass_time(10)
    assert card.ledger.strangers_bytes == 0


def test_nor_does_one_that_grows_and_shrinks_all_the_time(card):
    card.start("1", 10 * GIB, uses_bytes=GIB)
    for step in range(100):
        card.figures["1"] = card.holds["1"]
        card.holds["1"] = (1 + step % 7) * GIB
        card.pass_time(0.5)
        assert card.ledger.strangers_bytes == 0


def test_nor_does_one_that_starts(card):
    card.start("1", 10 * GIB, uses_bytes=GIB)
    card.pass_time(5)
    card.ledger.grant("2", 4 * GIB, label="digits 2", now_s=card.now_s)
    card.holds["2"] = 2 * GIB  # its context, before it is said to have started
    card.pass_time(10)
    assert card.ledger.strangers_bytes == 0


def test_use_that_nobody_explains_is_not_given_away_before_it_is_believed_to_be_anybodys(card):
    card.start("1", 10 * GIB, uses_bytes=GIB)
    card.pass_time(5)
    card.strangers_bytes = 12 * GIB
    card.pass_time(0.5)
    assert (card.ledger.strangers_bytes, card.free_bytes) == (0, 2 * GIB)
    assert "12.0 GiB just taken, it is not clear by whom" in card.ledger.explain(3 * GIB, card.now_s)


def test_a_stranger_is_believed_when_the_device_has_been_quiet(card):
    card.start("1", 10 * GIB, uses_bytes=GIB)
    card.pass_time(5)
    card.strangers_bytes = 5 * GIB
    card.pass_time(5)
    assert (card.ledger.strangers_bytes, card.free_bytes) == (5 * GIB, 9 * GIB)


def test_a_stranger_is_held_at_its_largest_for_a_minute(card):
    card.strangers_bytes = 5 * GIB
    card.look()
    card.strangers_bytes = GIB
    card.pass_time(59)
    assert card.ledger.strangers_bytes == 5 * GIB
    card.pass_time(2)
    assert (card.ledger.strangers_bytes, card.free_bytes) == (GIB, 23 * GIB)


def test_the_hold_is_of_the_last_minute_not_of_the_first_sight(card):
    card.strangers_bytes = 5 * GIB
    card.pass_time(300)
    card.strangers_bytes = 0
    card.pass_time(59)
    assert card.ledger.strangers_bytes == 5 * GIB


def test_the_last_estimate_stays_while_no_reading_is_quiet(card):
    card.strangers_bytes = 5 * GIB
    card.look()
    card.start("1", 10 * GIB)
    for step in range(300):
        card.use("1", (1 + step % 2) * GIB)
        card.pass_time(0.5)
    assert card.ledger.strangers_bytes == 5 * GIB


def test_a_trial_without_a_figure_may_hold_its_lease_and_makes_no_stranger(card):
    """In a container no pid is known, and a framework other than torch reports nothing."""
    card.strangers_bytes = GIB
    card.look()
    card.start("1", 10 * GIB, uses_bytes=None)
    card.holds["1"] = 9 * GIB
    card.pass_time(20)
    assert (card.ledger.strangers_bytes, card.free_bytes) == (GIB, 13 * GIB)


def test_use_beyond_such_a_trials_lease_is_a_strangers(card):
    card.start("1", 10 * GIB, uses_bytes=None)
    card.holds["1"] = 10 * GIB
    card.strangers_bytes = 4 * GIB
    card.pass_time(20)
    assert card.ledger.strangers_bytes == 4 * GIB


def test_a_stranger_that_left_is_not_blamed_on_such_a_trial(card):
    card.strangers_bytes = 6 * GIB
    card.look()
    card.start("1", 10 * GIB, uses_bytes=None)
    card.holds["1"] = 2 * GIB
    card.strangers_bytes = 0
    card.pass_time(70)
    assert card.ledger.strangers_bytes == 2 * GIB  # no more than all that is used


@pytest.mark.parametrize("uses_bytes", [0, None])
def test_a_row_of_young_trials_does_not_hide_a_stranger(card, uses_bytes):
    """Each of them could have taken the memory, if only its lease were looked at."""
    card.start("0", GIB, uses_bytes=GIB)
    card.pass_time(5)
    card.strangers_bytes = 20 * GIB
    card.pass_time(0.5)
    started = 0
    for name in range(1, 11):
        started += card.start(str(name), GIB, uses_bytes=uses_bytes).granted
        card.pass_time(0.5)
    assert started == 3


def test_noise_of_a_few_mib_is_no_disturbance(card):
    card.start("1", 10 * GIB, uses_bytes=GIB)
    card.pass_time(5)
    card.strangers_bytes = 5 * GIB
    for step in range(20):
        card.use("1", GIB + step % 2 * 50 * MIB)
        card.pass_time(0.5)
    assert card.ledger.strangers_bytes >= 5 * GIB - 50 * MIB


def test_two_at_a_time_beside_a_desktop_and_none_more_beside_a_stranger():
    """Of 8000 MiB 700 are a desktop's; then a stranger takes 5000; then he leaves. Nothing fails."""
    card = PaperCard(8000 * MIB)
    card.strangers_bytes = 700 * MIB
    card.look()
    assert [card.start(name, 3500 * MIB, uses_bytes=3000 * MIB).granted for name in "abc"] == [True, True, False]
    card.pass_time(5)
    card.end("a")
    card.strangers_bytes = 5000 * MIB
    card.now_s += 30
    assert card.settle("a").residue_bytes is not None
    assert not card.start("c", 3500 * MIB).granted
    card.end("b")
    card.now_s += 30
    card.settle("b")
    card.look()
    assert not card.start("c", 3500 * MIB).granted
    card.strangers_bytes = 700 * MIB
    card.pass_time(61)
    assert card.start("c", 3500 * MIB).granted


def test_on_the_cpu_others_live_outside_the_budget_first():
    card = PaperCard(24 * GIB, 20 * GIB, kind="cpu")
    card.strangers_bytes = 3 * GIB
    card.look()
    assert card.free_bytes == 20 * GIB
    card.strangers_bytes = 10 * GIB
    card.look()
    assert (card.free_bytes, card.ledger.strangers_bytes) == (14 * GIB, 6 * GIB)
    card.strangers_bytes = 3 * GIB
    card.look()
    assert card.free_bytes == 20 * GIB  # nothing is held: the kernel says what is available


def test_on_the_cpu_running_trials_may_still_grow_to_their_leases():
    card = PaperCard(24 * GIB, 20 * GIB, kind="cpu")
    card.look()
    card.start("1", 8 * GIB, uses_bytes=2 * GIB)
    card.strangers_bytes = 10 * GIB
    card.look()
    assert card.free_bytes == 24 * GIB - 10 * GIB - 8 * GIB


def test_on_a_shared_card_the_rest_belongs_to_the_other_workers():
    """Two with 9 GiB each on a card of 24: neither takes from the other, but a third program takes from both."""
    card = PaperCard(budget_bytes=9 * GIB, shared=True)
    card.strangers_bytes = 9 * GIB
    card.look()
    assert (card.ledger.strangers_bytes, card.free_bytes) == (0, 9 * GIB)
    card.start("1", 4 * GIB, uses_bytes=4 * GIB)
    card.pass_time(5)
    assert card.free_bytes == 5 * GIB
    card.strangers_bytes = 17 * GIB
    card.pass_time(10)
    assert (card.ledger.strangers_bytes, card.free_bytes) == (2 * GIB, 3 * GIB)


def test_on_a_card_of_its_own_a_worker_gives_way_to_them_from_the_first_byte():
    card = PaperCard(budget_bytes=9 * GIB)
    card.strangers_bytes = 9 * GIB
    card.look()
    assert card.free_bytes == 0
