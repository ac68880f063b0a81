"""What trials leave behind: never given away again, and a device on which it grows takes nothing more."""

from __future__ import annotations

import pytest
from support.paper_card import PaperCard

from vrampool.units import GIB, MIB
from vrampool_worker.ledger.residues import GROWTH_TRIALS, Residues


def leave(card: PaperCard, name: str, leaves_bytes: int) -> None:
    """Run a trial that leaves so much behind, until its lease is released."""
    assert card.start(name, 4 * GIB, uses_bytes=3 * GIB).granted
    card.pass_time(5)
    card.end(name, leaves_bytes=leaves_bytes)
    card.pass_time(31)
    assert card.settle(name) is not None


def test_a_card_on_which_residue_grows_over_several_trials_is_quarantined(card):
    """The sentence says how much, of whom, and what to do."""
    for name in ("1", "2"):
        leave(card, name, GIB)
        assert card.ledger.state[0] == "ready"
    leave(card, "3", GIB)
    state, reason = card.ledger.state
    assert state == "quarantined"
    assert "3 trials left memory in use" in reason and "3.0 GiB in all (digits 3 left 1.0 GiB)" in reason
    assert "vrampool resume" in reason
    assert card.ledger.explain(GIB, card.now_s).startswith("waits for 1.0 GiB: GPU 0 is quarantined: 3 trials left")
    assert not card.start("4", GIB).granted


def test_trials_in_between_that_leave_nothing_do_not_excuse_the_others(card):
    leave(card, "1", GIB)
    leave(card, "2", 0)
    leave(card, "3", GIB)
    leave(card, "4", 0)
    leave(card, "5", GIB)
    assert card.ledger.state[0] == "quarantined"


def test_residue_that_goes_away_is_forgotten(card):
    """Then two more are two, not four."""
    leave(card, "1", GIB)
    leave(card, "2", GIB)
    card.holds.update({"1": 0, "2": 0})
    card.pass_time(5)
    assert card.ledger.left_bytes == 0
    leave(card, "3", GIB)
    leave(card, "4", GIB)
    assert card.ledger.state[0] == "ready"


def test_a_resume_lifts_the_quarantine_when_the_memory_is_back_and_not_before(card):
    for name in ("1", "2", "3"):
        leave(card, name, GIB)
    card.ledger.resume()
    state, reason = card.ledger.state
    assert state == "quarantined" and "3.0 GiB that trials left behind are still in use" in reason
    card.holds.update(dict.fromkeys("123", 0))
    card.pass_time(5)
    assert card.ledger.state[0] == "ready", "that was asked for"
    assert card.start("4", GIB).granted


def test_a_quarantine_is_not_lifted_by_itself(card):
    """Somebody should look at what happened."""
    for name in ("1", "2", "3"):
        leave(card, name, GIB)
    card.holds.update(dict.fromkeys("123", 0))
    card.pass_time(5)
    assert card.ledger.state[0] == "quarantined"
    card.ledger.resume()
    assert card.ledger.state[0] == "ready"


def test_a_resume_lifts_a_quarantine_of_another_kind_whatever_is_left(card):
    leave(card, "1", GIB)
    card.ledger.quarantine("the process of digits/1 cannot be killed", card.now_s)
    card.ledger.resume()
    assert card.ledger.state[0] == "ready"


def test_what_is_left_is_named_apart_from_other_programs_and_given_to_nobody(card):
    card.strangers_bytes = 2 * GIB
    card.pass_time(5)
    leave(card, "1", 3 * GIB)
    card.pass_time(5)
    assert card.free_bytes == 24 * GIB - 5 * GIB
    assert card.ledger.explain(20 * GIB, card.now_s) == (
        "waits for 20.0 GiB: GPU 0 has 19.0 GiB free of its 24.0 GiB (other programs hold 2.0 GiB, "
        "3.0 GiB left behind by ended trials)"
    )


def test_on_a_shared_card_ones_own_residue_is_not_taken_for_the_others_part():
    """The other workers' half is theirs; what our trials left would else be given away once more."""
    card = PaperCard(24 * GIB, 12 * GIB, shared=True)
    card.look()
    leave(card, "1", 2 * GIB)
    card.pass_time(5)
    assert card.free_bytes == 10 * GIB


@pytest.mark.parametrize("residue_bytes", [0, 40 * MIB])
def test_noise_is_no_residue(residue_bytes):
    residues = Residues()
    assert [residues.note("a", residue_bytes) for _ in range(GROWTH_TRIALS + 1)] == [""] * (GROWTH_TRIALS + 1)
    assert residues.gone
