"""Memory is given back, and that is shown."""

from __future__ import annotations

import pytest
from support.paper_card import PaperCard

from vrampool.units import GIB, MIB


def test_a_lease_is_released_when_the_memory_is_seen_back(card):
    card.start("1", 6 * GIB, uses_bytes=5 * GIB)
    card.pass_time(5)
    card.end("1", leaves_bytes=5 * GIB)
    for _ in range(40):
        assert card.settle("1") is None
        assert card.free_bytes == 18 * GIB
    card.holds["1"] = 0
    release = card.settle("1")
    assert (release.residue_bytes, release.used_before_bytes, release.used_after_bytes) == (0, 5 * GIB, 0)
    assert release.back_s == pytest.approx(4.1)
    assert release.reason == "gave back its lease of 6.0 GiB of GPU 0; the memory was seen back after 4.1 s"
    card.look()
    assert card.free_bytes == 24 * GIB


def test_a_reading_from_before_the_end_proves_nothing(card):
    card.start("1", 6 * GIB)
    early = card.reading()
    card.now_s += 1
    card.end("1")
    assert card.ledger.settle("1", early, card.now_s) is None


def test_a_reading_with_a_fault_proves_nothing(card):
    card.start("1", 6 * GIB)
    card.end("1")
    faulty = type(card.reading())(at_s=card.now_s + 1, total_bytes=1, used_bytes=0, fault="Unknown Error")
    assert card.ledger.settle("1", faulty, card.now_s + 1) is None


def test_only_a_trial_that_has_ended_can_be_settled(card):
    card.start("1", 6 * GIB)
    with pytest.raises(ValueError, match="has not ended"):
        card.settle("1")


def test_memory_that_never_comes_back_is_named_and_counted_as_others(card):
    """What fits beside it still starts."""
    card.start("1", 6 * GIB, uses_bytes=5 * GIB)
    card.pass_time(5)
    card.end("1", leaves_bytes=5 * GIB)
    card.pass_time(31)
    release = card.settle("1")
    assert release.residue_bytes == 5 * GIB
    assert "5.0 GiB are still in use 31 s later" in release.reason
    assert not card.start("2", 20 * GIB).granted
    assert card.start("3", 19 * GIB).granted


def test_a_residue_is_known_before_the_next_reading(card):
    card.start("1", 6 * GIB, uses_bytes=5 * GIB)
    card.start("2", 6 * GIB, uses_bytes=GIB)
    card.pass_time(5)
    card.end("1", leaves_bytes=5 * GIB)
    card.pass_time(31)
    assert card.settle("1").residue_bytes == 5 * GIB
    assert card.ledger.strangers_bytes == 5 * GIB
    assert card.free_bytes == 24 * GIB - 6 * GIB - 5 * GIB


def test_a_neighbour_that_grows_at_the_last_moment_makes_the_residue_no_larger(card):
    card.start("1", 6 * GIB, uses_bytes=5 * GIB)
    card.start("2", 10 * GIB, uses_bytes=GIB)
    card.pass_time(5)
    card.end("1", leaves_bytes=2 * GIB)
    card.pass_time(29)
    assert card.settle("1") is None
    card.holds["2"] = 9 * GIB  # not reported yet
    card.pass_time(1)
    assert card.settle("1").residue_bytes == 2 * GIB


def test_a_few_mib_more_or_less_are_noise(card):
    card.start("1", 6 * GIB, uses_bytes=5 * GIB)
    card.pass_time(5)
    card.end("1", leaves_bytes=40 * MIB)
    assert card.settle("1") is not None


def test_a_neighbour_that_grows_meanwhile_does_not_hold_up_the_release(card):
    card.start("1", 6 * GIB, uses_bytes=5 * GIB)
    card.start("2", 10 * GIB, uses_bytes=GIB)
    card.pass_time(5)
    card.end("1")
    card.use("2", 8 * GIB)
    assert card.settle("1").residue_bytes == 0


def test_a_neighbour_without_a_figure_may_hold_its_lease(card):
    card.start("1", 6 * GIB, uses_bytes=5 * GIB)
    card.start("2", 10 * GIB, uses_bytes=None)
    card.holds["2"] = 9 * GIB
    card.pass_time(5)
    card.end("1")
    assert card.settle("1").residue_bytes == 0


def test_a_stranger_who_came_meanwhile_is_no_residue_of_a_measured_trial(card):
    card.start("1", 10 * GIB, uses_bytes=5 * GIB)
    card.pass_time(5)
    card.strangers_bytes = 4 * GIB
    card.pass_time(1.5)  # too short to be believed
    assert card.ledger.strangers_bytes == 0
    card.end("1")
    assert card.settle("1").residue_bytes == 0


def test_what_a_trial_took_just_before_its_end_must_come_back_too(card):
    """Its own report did not say so any more."""
    card.start("1", 10 * GIB, uses_bytes=GIB)
    card.pass_time(5)
    card.holds["1"] = 6 * GIB
    card.pass_time(0.5)
    card.end("1", leaves_bytes=5 * GIB)
    assert card.settle("1") is None
    card.holds["1"] = 0
    assert card.settle("1").residue_bytes == 0


def test_a_neighbour_that_shrinks_does_not_stand_in_for_the_memory_of_the_dead(card):
    card.start("1", 6 * GIB, uses_bytes=5 * GIB)
    card.start("2", 10 * GIB, uses_bytes=8 * GIB)
    card.pass_time(5)
    card.end("1", leaves_bytes=5 * GIB)
    card.use("2", 3 * GIB)
    assert card.settle("1") is None
    card.holds["1"] = 0
    assert card.settle("1").residue_bytes == 0


def test_two_that_end_together_are_released_when_both_are_back(card):
    card.start("1", 6 * GIB, uses_bytes=5 * GIB)
    card.start("2", 6 * GIB, uses_bytes=5 * GIB)
    card.pass_time(5)
    card.end("1", leaves_bytes=5 * GIB)
    card.end("2")
    card.settle("2")
    assert card.settle("1") is None
    card.holds["1"] = 0
    assert card.settle("1").residue_bytes == 0


def test_a_trial_that_touched_nothing_is_released_at_once(card):
    card.strangers_bytes = GIB
    card.look()
    card.start("1", 6 * GIB, uses_bytes=None)
    card.pass_time(5)
    card.end("1")
    assert card.settle("1").residue_bytes == 0


def test_no_trial_starts_in_memory_that_is_not_back_yet(card):
    """Also when the driver takes its time: the next one would run out of memory through no fault of its own."""
    card.start("1", 20 * GIB, uses_bytes=18 * GIB)
    card.pass_time(5)
    card.end("1", leaves_bytes=18 * GIB)
    card.pass_time(4)
    assert not card.start("2", 20 * GIB).granted
    card.holds["1"] = 0
    card.settle("1")
    assert card.start("2", 20 * GIB).granted


def test_on_the_cpu_memory_is_back_when_the_processes_are_gone():
    card = PaperCard(24 * GIB, 20 * GIB, kind="cpu")
    card.look()
    card.start("1", 6 * GIB, uses_bytes=5 * GIB)
    card.look()
    card.end("1", leaves_bytes=5 * GIB)  # what the kernel keeps of files is not ours
    assert card.settle("1").residue_bytes == 0
