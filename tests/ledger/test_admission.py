"""What may start, and what it gets."""

from __future__ import annotations

import pytest
from support.paper_card import PaperCard

from vrampool.units import GIB, MIB


def test_nothing_starts_before_the_device_was_read():
    card = PaperCard()
    assert card.ledger.offer(card.now_s).free_bytes == 0
    assert not card.start("1", GIB).granted
    assert "has not been read yet" in card.ledger.explain(GIB, card.now_s)


def test_free_is_the_budget_less_everything_that_is_held():
    card = PaperCard(budget_bytes=20 * GIB)
    card.driver_reserved_bytes = GIB // 2
    card.strangers_bytes = GIB
    card.look()
    assert card.free_bytes == 20 * GIB - GIB // 2 - GIB
    card.start("1", 6 * GIB, uses_bytes=2 * GIB)
    card.pass_time(5)
    assert card.free_bytes == 20 * GIB - GIB // 2 - GIB - 6 * GIB


def test_a_trial_that_has_not_grown_yet_counts_by_its_lease(card):
    """Two that start at once would else both be let in on what only one can have."""
    assert card.start("1", 13 * GIB).granted
    assert not card.start("2", 13 * GIB).granted
    card.pass_time(5)
    assert not card.start("2", 13 * GIB).granted


def test_a_trial_that_outgrew_its_lease_counts_by_what_it_holds(card):
    card.start("1", 2 * GIB)
    card.use("1", 5 * GIB)
    card.pass_time(5)
    assert card.free_bytes == 19 * GIB


def test_leases_of_one_reading_add_up(card):
    names = [name for name in "abcdef" if card.start(name, 5 * GIB).granted]
    assert len(names) == 4


def test_there_are_no_more_trials_than_slots():
    card = PaperCard(max_trials=2)
    card.look()
    granted = [card.start(name, MIB).granted for name in "abc"]
    assert granted == [True, True, False]
    assert "2 of at most 2 trials" in card.ledger.explain(MIB, card.now_s)


@pytest.mark.parametrize("request_bytes", [0, -1])
def test_a_request_of_nothing_is_not_granted(card, request_bytes):
    assert not card.start("1", request_bytes).granted


def test_a_lease_id_is_used_once(card):
    card.start("1", GIB)
    with pytest.raises(ValueError, match="in use"):
        card.start("1", GIB)


def test_a_trial_that_was_never_started_gives_its_lease_back_at_once(card):
    card.ledger.grant("1", 20 * GIB, label="digits 1", now_s=card.now_s)
    card.ledger.cancel("1")
    assert card.free_bytes == 24 * GIB


def test_an_unknown_trial_runs_alone_with_all_there_is(card):
    decision = card.start("1", None)
    assert (decision.granted, decision.lease_bytes) == (True, 24 * GIB)
    assert card.ledger.offer(card.now_s).free_bytes == 0
    assert not card.start("2", MIB).granted
    assert card.ledger.explain(MIB, card.now_s) == (
        "waits for 1.0 MiB: digits 1 runs alone on GPU 0 until its memory is known"
    )


def test_nothing_joins_it_when_a_stranger_makes_room(card):
    card.strangers_bytes = 10 * GIB
    card.look()
    card.start("1", None)
    card.strangers_bytes = 0
    card.pass_time(70)
    assert not card.start("2", GIB).granted


def test_an_unknown_trial_waits_for_an_idle_device(card):
    card.start("1", GIB)
    assert not card.start("2", None).granted
    assert card.ledger.explain(None, card.now_s) == "waits for a device of its own: 1 trial still on GPU 0"


def test_a_device_that_awaits_memory_is_not_idle(card):
    card.start("1", GIB, uses_bytes=GIB)
    card.pass_time(5)
    card.end("1", leaves_bytes=GIB)
    assert card.settle("1") is None
    assert not card.ledger.offer(card.now_s).idle


def test_the_first_report_ends_exclusivity_and_others_may_join(card):
    card.start("1", None)
    card.use("1", 4 * GIB)
    card.pass_time(1)
    decision = card.ledger.report_first("1", 3 * GIB, card.now_s)
    assert (decision.granted, decision.lease_bytes) == (True, 5 * GIB)  # of the larger figure
    assert card.start("2", 10 * GIB).granted


def test_a_first_report_of_unknown_memory_is_read_off_the_device(card):
    card.strangers_bytes = GIB
    card.look()
    card.start("1", None, uses_bytes=None)
    card.holds["1"] = 4 * GIB
    card.pass_time(1)
    assert card.ledger.report_first("1", None, card.now_s).lease_bytes == 5 * GIB


def test_when_nothing_is_known_the_trial_stays_alone(card):
    card.tells = False
    card.look()
    card.start("1", None, uses_bytes=None)
    decision = card.ledger.report_first("1", None, card.now_s)
    assert (decision.granted, decision.lease_bytes) == (False, 24 * GIB)
    assert not card.start("2", MIB).granted


def test_a_trial_that_did_not_run_alone_keeps_its_lease(card):
    card.start("1", 6 * GIB)
    assert card.ledger.report_first("1", GIB, card.now_s).lease_bytes == 6 * GIB


def test_a_device_that_tells_nothing_is_managed_by_bookkeeping(card):
    """Its size was given by hand. Never "nothing free" for ever."""
    card.tells = False
    card.look()
    assert card.start("1", 20 * GIB, uses_bytes=None).granted
    assert not card.start("2", 5 * GIB, uses_bytes=None).granted
    card.end("1")
    release = card.settle("1")
    assert release.residue_bytes is None
    assert card.free_bytes == 24 * GIB


# -- states ---------------------------------------------------------------------------------------------------------


def test_a_blind_device_takes_nothing_and_sees_again_with_the_next_reading(card):
    card.ledger.blind("GPU 0 has not answered for 10 s", card.now_s)
    assert card.ledger.state == ("blind", "GPU 0 has not answered for 10 s")
    assert not card.start("1", GIB).granted
    card.ledger.resume()
    assert not card.start("1", GIB).granted
    card.look()
    assert card.start("1", GIB).granted


def test_a_reading_with_a_fault_makes_blind(card):
    reading = card.reading()
    card.ledger.observe(type(reading)(at_s=1, total_bytes=1, fault="Unknown Error"), {}, card.now_s)
    assert card.ledger.state[0] == "blind"


@pytest.mark.parametrize(("act", "state"), [("pause", "paused"), ("drain", "draining"), ("quarantine", "quarantined")])
def test_a_stopped_device_takes_nothing_until_it_is_resumed(card, act, state):
    arguments = ("by hand", card.now_s) if act == "quarantine" else ("by hand",)
    getattr(card.ledger, act)(*arguments)
    assert card.ledger.state == (state, "by hand")
    assert card.ledger.offer(card.now_s) == type(card.ledger.offer(card.now_s))(0, False, f"GPU 0 is {state}: by hand")
    assert not card.start("1", GIB).granted
    card.look()
    assert not card.start("1", GIB).granted
    card.ledger.resume()
    assert card.ledger.state == ("ready", "")
    assert card.start("1", GIB).granted


def test_a_pause_can_be_taken_back_without_ending_a_quarantine(card):
    card.ledger.pause("by hand")
    card.ledger.quarantine("a process cannot be killed", card.now_s)
    card.ledger.pause(None)
    assert card.ledger.state == ("quarantined", "a process cannot be killed")


def test_the_gravest_state_is_shown_with_its_beginning(card):
    card.ledger.pause("by hand")
    card.ledger.blind("silent", card.now_s)
    card.ledger.blind("still silent", card.now_s + 5)
    shown = card.ledger.snapshot(card.now_s + 6)
    assert (shown.state, shown.reason, shown.since_s) == ("blind", "still silent", card.now_s)


# -- growing and shrinking ------------------------------------------------------------------------------------------


def test_a_lease_shrinks_and_makes_room(card):
    card.start("1", 20 * GIB, uses_bytes=3 * GIB)
    card.pass_time(5)
    decision = card.ledger.shrink("1", 4 * GIB, card.now_s)
    assert (decision.granted, decision.lease_bytes) == (True, 4 * GIB)
    assert card.free_bytes == 20 * GIB


def test_a_lease_never_shrinks_below_what_is_held(card):
    card.start("1", 20 * GIB, uses_bytes=6 * GIB)
    card.pass_time(5)
    assert card.ledger.shrink("1", 4 * GIB, card.now_s).lease_bytes == 6 * GIB
    assert not card.ledger.shrink("1", 4 * GIB, card.now_s).granted


def test_what_the_child_says_after_giving_back_its_cache_counts_for_the_shrink(card):
    card.start("1", 20 * GIB, uses_bytes=6 * GIB)
    card.pass_time(5)
    decision = card.ledger.shrink("1", 4 * GIB, card.now_s, measured_bytes=2 * GIB)
    assert decision.lease_bytes == 4 * GIB


def test_a_lease_grows_as_far_as_there_is_room(card):
    card.start("1", 6 * GIB)
    card.start("2", 10 * GIB)
    assert card.ledger.grow("1", 8 * GIB, card.now_s).lease_bytes == 8 * GIB
    partly = card.ledger.grow("1", 20 * GIB, card.now_s)
    assert (partly.granted, partly.lease_bytes) == (True, 14 * GIB)
    assert "grew only to 14.0 GiB of 20.0 GiB asked for" in partly.reason
    none = card.ledger.grow("1", 20 * GIB, card.now_s)
    assert (none.granted, none.lease_bytes) == (False, 14 * GIB)


def test_what_a_trial_holds_beyond_its_lease_is_not_counted_against_its_own_growth(card):
    card.start("1", 6 * GIB)
    card.use("1", 7 * GIB)
    card.pass_time(5)
    assert card.ledger.over("1")
    assert card.ledger.grow("1", 24 * GIB, card.now_s).lease_bytes == 24 * GIB
    assert not card.ledger.over("1")


def test_a_running_trial_grows_on_a_paused_device_and_not_on_a_blind_one(card):
    card.start("1", 6 * GIB)
    card.ledger.pause("by hand")
    assert card.ledger.grow("1", 8 * GIB, card.now_s).granted
    card.ledger.blind("silent", card.now_s)
    assert not card.ledger.grow("1", 9 * GIB, card.now_s).granted


# -- what is said ---------------------------------------------------------------------------------------------------


def test_a_waiting_trial_is_told_who_holds_what():
    card = PaperCard(budget_bytes=int(20.4 * GIB))
    card.strangers_bytes = int(1.2 * GIB)
    card.look()
    card.start("1", 6 * GIB)
    card.start("2", 4 * GIB)
    assert card.ledger.explain(int(14.2 * GIB), card.now_s) == (
        "waits for 14.2 GiB: GPU 0 has 9.2 GiB free of its 20.4 GiB (2 trials hold 10.0 GiB, other programs 1.2 GiB)"
    )


def test_a_request_beyond_the_budget_is_told_so_whatever_the_state(card):
    card.ledger.pause("by hand")
    assert card.ledger.explain(30 * GIB, card.now_s) == (
        "never fits GPU 0: it asks for 30.0 GiB of a budget of 24.0 GiB"
    )


def test_a_trial_that_waits_for_nothing_here_is_told_so(card):
    assert card.ledger.explain(GIB, card.now_s) == "could start now: GPU 0 has 24.0 GiB free of its 24.0 GiB"


def test_a_refusal_says_what_explain_says(card):
    card.start("1", 20 * GIB)
    assert card.start("2", 10 * GIB).reason == card.ledger.explain(10 * GIB, card.now_s)


def test_a_snapshot_shows_every_lease(card):
    card.start("1", 6 * GIB, uses_bytes=2 * GIB)
    card.look()
    (lease,) = card.ledger.snapshot(card.now_s).leases
    assert (lease.label, lease.lease_bytes, lease.measured_bytes) == ("digits 1", 6 * GIB, 2 * GIB)
    assert (lease.alone, lease.ending) == (False, False)
    assert card.ledger.measured("1") == 2 * GIB and card.ledger.measured("nonesuch") is None


# -- overhead -------------------------------------------------------------------------------------------------------


def test_the_overhead_is_learned_from_a_quiet_trial(card):
    card.start("1", 6 * GIB)
    card.use("1", 2 * GIB + 700 * MIB)
    card.pass_time(5)
    assert card.ledger.overhead_bytes == 780 * MIB  # as taken until then
    card.ledger.learn_overhead("1", 2 * GIB)
    assert card.ledger.overhead_bytes == 700 * MIB


def test_without_a_figure_of_its_own_a_lone_trial_still_shows_its_overhead(card):
    card.strangers_bytes = GIB
    card.look()
    card.start("1", 6 * GIB, uses_bytes=None)
    card.holds["1"] = 2 * GIB + 700 * MIB
    card.pass_time(5)
    card.ledger.learn_overhead("1", 2 * GIB)
    assert card.ledger.overhead_bytes == 700 * MIB


@pytest.mark.parametrize("reported_bytes", [0, 100 * MIB, 5 * GIB])
def test_figures_of_different_moments_teach_nothing(card, reported_bytes):
    card.start("1", 6 * GIB)
    card.use("1", 3 * GIB)
    card.look()
    card.ledger.learn_overhead("1", 3 * GIB - 700 * MIB)  # it has just grown: not quiet
    card.pass_time(5)
    card.ledger.learn_overhead("1", reported_bytes)
    assert card.ledger.overhead_bytes == 780 * MIB


def test_there_is_no_overhead_on_the_cpu():
    assert PaperCard(kind="cpu").ledger.overhead_bytes == 0
