"""How many trials at once: found within 10 % of the best fixed number, without moving back and forth."""

from __future__ import annotations

import functools

import pytest
from support.paper_card import PaperCard
from support.throughput_curves import (
    LARGE,
    LARGE_BUSY,
    LARGE_MPS,
    SMALL,
    SMALL_BUSY,
    SMALL_MPS,
    CurveCard,
    best_fixed,
)

from vrampool.units import GIB
from vrampool_worker.ledger.concurrency import BUSY_MPS, Concurrency
from vrampool_worker.ledger.throughput import Comparison

LASTS_S = 400.0
MOST = 16
CURVES = {
    "small": (SMALL, SMALL_BUSY),
    "large": (LARGE, LARGE_BUSY),
    "small under MPS": (SMALL_MPS, None),
    "large under MPS": (LARGE_MPS, None),
}
WORK = {
    "20 s": lambda number: 20.0,
    "90 s": lambda number: 90.0,
    "5 to 60 s": lambda number: (5.0, 30.0, 12.0, 60.0)[number % 4],
    "2 s": lambda number: 2.0,
}


def card_of(name: str, *, tells: bool, counts_every_s: float | None, work: str = "20 s", seed: int = 0) -> CurveCard:
    curve, busy = CURVES[name]
    return CurveCard(curve, busy if tells else None, counts_every_s, WORK[work], seed=seed)


def admission_of(name: str) -> Concurrency:
    return Concurrency(MOST, busy=BUSY_MPS if "MPS" in name else 0.85)


@functools.cache
def best_of(name: str, work: str) -> float:
    return best_fixed(lambda: card_of(name, tells=False, counts_every_s=None, work=work), LASTS_S)


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("counts_every_s", [0.05, 2.0], ids=["steps", "reports"])
@pytest.mark.parametrize("tells", [True, False], ids=["utilisation", "no utilisation"])
@pytest.mark.parametrize("name", CURVES)
def test_the_work_done_is_within_a_tenth_of_the_best_fixed_number(name, tells, counts_every_s, work):
    best = best_of(name, work)
    card = card_of(name, tells=tells, counts_every_s=counts_every_s, work=work)
    done = card.run(LASTS_S, admission_of(name))
    # Between trials of 2 s that fill the card alone it idles for a moment, which only a second one could use.
    share = 0.85 if (name, work) == ("large", "2 s") else 0.9
    assert done >= share * best, f"{done / best:.2f} of the best; limits {card.limits}"


@pytest.mark.parametrize("name", ["small", "large"])
def test_utilisation_alone_is_enough(name):
    """Objectives that report nothing, on a card that tells its utilisation."""
    card = card_of(name, tells=True, counts_every_s=None)
    assert card.run(LASTS_S, admission_of(name)) >= 0.9 * best_of(name, "20 s")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CURVES)
def test_the_number_settles(name, seed):
    """Once it has found its place it only looks around, less and less often, and by one step."""
    card = card_of(name, tells=False, counts_every_s=0.05, seed=seed)
    admission = admission_of(name)
    card.run(LASTS_S, admission)
    settled = admission.limit
    before = len(card.limits)
    card.run(LASTS_S, admission)
    moves = card.limits[before:]
    assert len(moves) <= 6, moves  # a look there and back, less and less often
    assert all(abs(move - settled) <= max(2, settled // 2) for move in moves), (settled, moves)


def test_eight_small_trials_run_together_under_mps_and_one_large_one_alone_in_time_slices():
    small, large = (
        card_of("small under MPS", tells=False, counts_every_s=0.05),
        card_of("large", tells=True, counts_every_s=0.05),
    )
    small.run(LASTS_S, admission_of("small under MPS"))
    large.run(LASTS_S, admission_of("large"))
    assert 7 <= sum(small.levels[-500:]) / 500 <= 12
    assert sum(large.levels[-500:]) / 500 <= 1.5


def test_where_nothing_tells_how_fast_trials_are_memory_decides():
    card = CurveCard(SMALL, None, None, WORK["90 s"])
    admission = Concurrency(MOST)
    card.run(60.0, admission)
    assert admission.limit == MOST and admission.obstacle(12) == ""


def test_another_study_makes_everything_new():
    """What large trials have shown must not hold up small ones."""
    admission = Concurrency(MOST)
    large = CurveCard(LARGE, None, 0.05, WORK["20 s"], study="large")
    large.run(LASTS_S, admission)
    small = CurveCard(SMALL_MPS, None, 0.05, WORK["20 s"], study="small", now_s=large.now_s)
    before = admission.limit
    small.run(60.0, admission)
    assert before < 4 and max(small.limits) >= 8


def test_two_studies_that_take_turns_are_not_new_each_time():
    """What was found stays: a start from four at each turn would show in the limits."""
    admission = Concurrency(MOST)
    card = CurveCard(SMALL_MPS, None, 0.05, WORK["20 s"])
    found = []
    for turn in range(8):
        card.study = f"study {turn % 2}"
        card.run(40.0, admission)
        found.append(admission.limit)
    assert min(found[2:]) > 4


def test_the_first_trial_always_starts():
    admission = Concurrency(MOST)
    for tick in range(20):
        admission.observe({"1": "digits"}, 0.99, tick * 0.5)
    assert admission.obstacle(0) == ""
    assert admission.obstacle(1) == "1 running; 2nd waits: SM 99 % busy"


def test_large_trials_one_after_the_other_stay_so_over_the_gap_between_two():
    """Each gap would let four of them in otherwise, and only their end would undo it."""
    admission = Concurrency(MOST)
    for tick in range(10):
        admission.observe({"1": "digits"}, 0.95, tick * 0.5)
    admission.observe({}, 0.02, 5.0)
    assert admission.obstacle(0) == "" and admission.obstacle(1) == "1 running; 2nd waits: SM 95 % busy"
    for tick in range(10):
        admission.observe({"2": "digits"}, 0.17, 5.5 + tick * 0.5)
    assert admission.obstacle(1) == "", "the next one was a small one"


def test_that_another_study_filled_the_card_says_nothing_of_this_one():
    admission = Concurrency(MOST)
    for tick in range(10):
        admission.observe({"1": "large"}, 0.95, tick * 0.5)
    admission.observe({}, 0.02, 5.0)
    admission.observe({"2": "small"}, None, 5.5)
    assert admission.obstacle(1) == ""


def test_a_card_that_hovers_at_the_bound_is_not_let_in_and_out():
    admission = Concurrency(MOST)
    said = []
    for tick in range(200):
        admission.observe({"1": "digits"}, 0.86 if tick < 6 else 0.83 + 0.02 * (tick % 2), tick * 0.5)
        said.append(bool(admission.obstacle(1)))
    assert said.index(True) == 5 and all(said[5:])


def test_the_reason_says_what_the_last_ones_have_brought():
    card = card_of("small", tells=False, counts_every_s=0.05)
    admission = admission_of("small")
    while card.now_s < 1000 + LASTS_S and "made" not in admission.obstacle(admission.limit):
        card.run(1.0, admission)
    assert admission.obstacle(admission.limit).startswith("4 running; 5th waits: 8 at once instead of 4 made +")
    assert admission.obstacle(admission.limit).endswith(" % steps per second")


def test_elasticity_is_one_where_each_trial_adds_as_much_as_the_first():
    assert Comparison(2, 4, 2.0, "").elasticity == pytest.approx(1)
    assert Comparison(2, 4, 1.0, "").elasticity == 0
    assert Comparison(1, 8, 0.91, "").elasticity < 0


# -- in the ledger --------------------------------------------------------------------------------------------------


def test_a_busy_card_takes_no_more_while_something_runs():
    card = PaperCard(concurrency=Concurrency(MOST))
    card.utilisation = 0.91
    card.look()
    for name in ("1", "2", "3", "4"):
        assert card.start(name, GIB).granted
    card.pass_time(5)
    assert not card.start("5", GIB).granted
    assert card.ledger.explain(GIB, card.now_s) == "waits for 1.0 GiB: GPU 0: 4 running; 5th waits: SM 91 % busy"
    assert card.ledger.offer(card.now_s).reason == "GPU 0: 4 running; 5th waits: SM 91 % busy"
    card.utilisation = 0.5
    card.pass_time(5)
    assert "SM" not in card.ledger.explain(GIB, card.now_s)


def test_memory_is_asked_first_and_gain_second():
    card = PaperCard(concurrency=Concurrency(MOST))
    card.look()
    assert card.start("1", 20 * GIB).granted
    assert not card.start("2", 10 * GIB).granted
    assert "4.0 GiB free" in card.ledger.explain(10 * GIB, card.now_s)


def test_a_trial_that_has_ended_does_not_count_while_its_memory_is_awaited():
    """Its multiprocessors are free already."""
    card = PaperCard(concurrency=Concurrency(MOST))
    card.look()
    card.start("1", GIB, uses_bytes=GIB)
    card.utilisation = 0.95
    card.pass_time(5)
    assert "SM 95 % busy" in card.ledger.explain(GIB, card.now_s)
    card.end("1", leaves_bytes=GIB)
    card.pass_time(1)
    assert card.start("2", GIB).granted


def test_a_trial_whose_objective_has_returned_leaves_its_place_before_its_memory():
    card = PaperCard(concurrency=Concurrency(8, start=2))
    card.look()
    assert card.start("1", GIB).granted and card.start("2", GIB).granted
    assert card.ledger.offer(card.now_s).closed, "2 running; 3rd waits"
    card.ledger.returned("1")
    offer = card.ledger.offer(card.now_s)
    assert not offer.closed and offer.free_bytes == 22 * GIB
