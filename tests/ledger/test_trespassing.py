"""A trial that no cap holds: left alone while that harms nobody, named when it takes what is its neighbours'."""

from __future__ import annotations

from support.paper_card import PaperCard

from vrampool.units import GIB, MIB


def card_with_two(**options) -> PaperCard:
    card = PaperCard(24 * GIB, 20 * GIB, **options)
    card.look()
    assert card.start("greedy", 4 * GIB, uses_bytes=3 * GIB).granted
    assert card.start("meek", 10 * GIB, uses_bytes=9 * GIB).granted
    card.pass_time(3)
    return card


def test_above_its_lease_and_within_the_budget_it_harms_nobody():
    card = card_with_two()
    card.use("greedy", 10 * GIB)
    card.pass_time(5)
    assert card.ledger.trespasser is None


def test_beyond_the_budget_the_one_above_its_lease_is_named():
    card = card_with_two()
    card.use("greedy", 12 * GIB)
    card.pass_time(0.5)
    assert card.ledger.trespasser is None, "one reading may be a mistake"
    card.pass_time(1.5)
    assert card.ledger.trespasser == "greedy"


def test_the_worst_is_named_where_several_are():
    card = card_with_two()
    card.use("greedy", 12 * GIB)
    card.use("meek", 10 * GIB + 512 * MIB)
    card.pass_time(2)
    assert card.ledger.trespasser == "greedy"


def test_a_stranger_that_comes_makes_no_trespasser_of_those_within_their_leases():
    """Then nobody of ours is at fault."""
    card = card_with_two()
    card.strangers_bytes = 10 * GIB
    card.pass_time(5)
    assert card.ledger.trespasser is None


def test_a_few_mib_above_the_lease_are_the_drivers_rounding():
    card = card_with_two()
    card.strangers_bytes = 10 * GIB
    card.use("meek", 10 * GIB + 60 * MIB)
    card.pass_time(5)
    assert card.ledger.trespasser is None


def test_one_that_came_back_within_its_lease_is_forgiven():
    card = card_with_two()
    card.use("greedy", 12 * GIB)
    card.pass_time(1)
    card.use("greedy", 4 * GIB)
    card.pass_time(0.5)
    card.use("greedy", 12 * GIB)
    card.pass_time(0.5)
    assert card.ledger.trespasser is None


def test_a_stranger_that_has_left_makes_no_trespasser():
    """He counts for a minute more where trials are admitted, and harms nobody meanwhile."""
    card = PaperCard(24 * GIB, 20 * GIB)
    card.strangers_bytes = 12 * GIB
    card.look()
    assert card.start("greedy", 4 * GIB, uses_bytes=3 * GIB).granted
    card.pass_time(3)
    card.strangers_bytes = 0
    card.pass_time(3)
    card.use("greedy", 10 * GIB)
    card.pass_time(5)
    assert card.ledger.strangers_bytes == 12 * GIB
    assert card.ledger.trespasser is None


def test_one_that_grew_is_compared_with_its_new_lease():
    card = card_with_two()
    card.use("greedy", 9 * GIB)
    card.pass_time(2)
    card.ledger.grow("greedy", 9 * GIB, card.now_s)
    card.strangers_bytes = 4 * GIB
    card.pass_time(5)
    assert card.ledger.trespasser is None


def test_where_nothing_is_measured_nobody_is_accused():
    card = PaperCard(24 * GIB, 20 * GIB)
    card.look()
    card.start("1", 4 * GIB, uses_bytes=None)
    card.holds["1"] = 22 * GIB
    card.pass_time(5)
    assert card.ledger.trespasser is None
