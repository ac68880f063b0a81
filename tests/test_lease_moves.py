"""Leases that shrink and grow while their trials run: what is asked of a child, and what is made of its answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.paper_card import PaperCard

from vrampool.messages import MemorySample, ObjectiveRef, SubmissionSpec, Ticket
from vrampool.units import GIB
from vrampool_worker.asking import Asked
from vrampool_worker.attempts import Attempt, Stage
from vrampool_worker.lease_moves import LeaseMoves
from vrampool_worker.memory_watch import MemoryWatch


class Child:
    """Takes orders and keeps them."""

    def __init__(self) -> None:
        self.caps: list[int] = []
        self.refusals: list[str] = []

    def recap(self, cap_bytes: int) -> None:
        self.caps.append(cap_bytes)

    def stay(self, reason: str) -> None:
        self.refusals.append(reason)


class Loop:
    """As much of a worker's loop as moves of leases touch, around a real ledger of a card on paper."""

    def __init__(self) -> None:
        self.card = PaperCard(total_bytes=24 * GIB)
        self.card.look()
        self.ledger = self.card.ledger
        self.device = SimpleNamespace(kind="cuda", total_bytes=24 * GIB)
        self.reading = None
        self.mps: Any = None
        self.settings = SimpleNamespace(sample_s=0.5)
        self.attempts: dict[str, Attempt] = {}
        self.wakes = self.readings = 0
        self.sampler = SimpleNamespace(read_soon=self._read_soon)
        self.memory = MemoryWatch(self)  # type: ignore[arg-type]

    @property
    def moves(self) -> LeaseMoves:
        return self.memory.moves

    def _read_soon(self) -> None:
        self.readings += 1

    def wake(self) -> None:
        self.wakes += 1

    def keepers_changed(self) -> None:
        pass

    def run(self, name: str, request: int | None, holds: int, *, vram: Any = "auto", around: bool = True) -> Attempt:
        """Let a trial run that holds so much, and has reported."""
        decision = self.card.start(name, request, uses_bytes=holds)
        assert decision.granted
        attempt = Attempt(
            job_id=name,
            lease_id=name,
            ticket=Ticket("p", "study", "s1", len(self.attempts), 1, request),
            taken_at_s=0.0,
            wait_s=0.0,
            stage=Stage.RUNNING,
            spec=SubmissionSpec("s1", "study", ObjectiveRef("import", "m:f"), vram=vram),
            lease_bytes=decision.lease_bytes,
            lease_at_end_bytes=decision.lease_bytes,
            exclusive=request is None,
            reported=around,
            been_around=around,
            settled=around,
        )
        attempt.child = Child()  # type: ignore[assignment]
        reserved = holds - self.ledger.overhead_bytes
        attempt.sample = MemorySample(
            torch_reserved_bytes=reserved, max_torch_reserved_bytes=reserved, cuda_initialized=True
        )
        self.attempts[name] = attempt
        return attempt

    def short(self, wanted: int) -> None:
        """The queue says that the smallest trial that waits wants so much."""
        self.moves.make_room(Asked(None, None, wanted), self.card.free_bytes)

    def answer(self, attempt: Attempt, *, asked: int | None = None, cap: int | None = None, held: int = GIB) -> None:
        """The child says what has become of its cap."""
        last = orders(attempt)[-1]
        asked = last if asked is None else asked
        cap = asked if cap is None else cap
        data = {"asked_bytes": asked, "cap_bytes": cap, "freed_bytes": 0, "held_bytes": held, "enforced": True}
        self.moves.on_recapped(attempt, data, self.card.now_s)


def orders(attempt: Attempt) -> list[int]:
    child: Any = attempt.child
    return child.caps


def refusals(attempt: Attempt) -> list[str]:
    child: Any = attempt.child
    return child.refusals


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_room_is_given_away_only_when_the_child_has_confirmed_and_the_device_was_read(loop: Loop) -> None:
    attempt = loop.run("a", 20 * GIB, 6 * GIB)
    loop.short(10 * GIB)
    assert len(orders(attempt)) == 1 and orders(attempt)[0] < 20 * GIB
    assert loop.card.free_bytes == 4 * GIB, "asked is not given"
    loop.answer(attempt)
    assert loop.card.free_bytes >= 10 * GIB
    assert (loop.readings, loop.wakes) == (1, 0)
    loop.moves.on_reading()
    assert loop.wakes == 1, "and then it is admitted at once"
    assert attempt.shrunk_from_bytes == 20 * GIB
    assert attempt.lease_at_end_bytes == loop.ledger.snapshot(loop.card.now_s).leases[0].lease_bytes


def test_a_child_that_has_grown_meanwhile_keeps_what_it_holds(loop: Loop) -> None:
    attempt = loop.run("a", 20 * GIB, 6 * GIB)
    loop.short(10 * GIB)
    cap = orders(attempt)[0] + 2 * GIB
    loop.answer(attempt, cap=cap, held=cap - GIB)
    assert attempt.lease_at_end_bytes == cap + loop.ledger.overhead_bytes


def test_an_answer_to_an_earlier_order_confirms_nothing(loop: Loop) -> None:
    """Its cap was raised a moment before: that answer comes first."""
    attempt = loop.run("a", 20 * GIB, 6 * GIB)
    loop.short(10 * GIB)
    loop.answer(attempt, asked=19 * GIB)
    assert attempt.lease_at_end_bytes == 20 * GIB and attempt.move is not None
    loop.answer(attempt)
    assert attempt.lease_at_end_bytes < 20 * GIB and attempt.move is None


def test_nothing_is_asked_twice_and_others_are_asked_when_a_child_stays_silent(loop: Loop) -> None:
    silent, other = loop.run("a", 12 * GIB, 3 * GIB), loop.run("b", 10 * GIB, 3 * GIB)
    loop.short(5 * GIB)
    loop.short(5 * GIB)
    assert (len(orders(silent)), len(orders(other))) == (1, 0)
    assert silent.move is not None
    silent.move = type(silent.move)(silent.move.to_bytes, silent.move.cap_bytes, silent.move.asked_at_s - 60)
    loop.short(5 * GIB)
    assert (len(orders(silent)), len(orders(other))) == (1, 1)


@pytest.mark.parametrize("why", ["declared", "not around", "alloc retries", "no context", "kept", "in vain"])
def test_a_lease_that_must_not_shrink_is_left_alone(loop: Loop, why: str) -> None:
    attempt = loop.run(
        *("a", 20 * GIB, 6 * GIB), vram=20 * GIB if why == "declared" else "auto", around=why != "not around"
    )
    if why == "alloc retries":
        attempt.sample = MemorySample(**{**attempt.sample.to_json(), "num_alloc_retries": 1})
    if why == "no context":
        attempt.sample = MemorySample(**{**attempt.sample.to_json(), "cuda_initialized": False})
    if why == "kept":
        loop.moves.keep("s1", "one of its trials ran out of memory")
    loop.short(23 * GIB if why == "in vain" else 10 * GIB)
    assert orders(attempt) == []
    assert bool(loop.moves.shrinkable_bytes()) is (why == "in vain")


def test_bounds_are_no_declaration(loop: Loop) -> None:
    attempt = loop.run("a", 20 * GIB, 6 * GIB, vram={"least": GIB, "most": 20 * GIB})
    loop.short(10 * GIB)
    assert len(orders(attempt)) == 1


def test_the_end_of_exclusivity_is_confirmed_by_the_child_too(loop: Loop) -> None:
    attempt = loop.run("a", None, 6 * GIB)
    loop.moves.end_exclusivity(attempt)
    loop.moves.end_exclusivity(attempt)
    assert len(orders(attempt)) == 1
    assert attempt.exclusive and loop.card.free_bytes == 0
    loop.answer(attempt, held=5 * GIB)
    assert not attempt.exclusive
    assert attempt.lease_at_end_bytes == pytest.approx(1.25 * 6 * GIB, rel=0.01)


def test_where_leases_are_kept_a_trial_that_ran_alone_is_left_with_twice_its_peak(loop: Loop) -> None:
    """Alone until its end it would keep all others waiting."""
    attempt = loop.run("a", None, 6 * GIB)
    loop.moves.keep("s1", "one of its trials ran out of memory")
    loop.moves.end_exclusivity(attempt)
    loop.answer(attempt, held=5 * GIB)
    assert not attempt.exclusive and attempt.lease_at_end_bytes == pytest.approx(12 * GIB, rel=0.01)
    assert loop.moves.shrinkable_bytes() == 0


def test_where_leases_are_kept_a_trial_that_is_tried_again_is_left_alone(loop: Loop) -> None:
    attempt = loop.run("a", None, 6 * GIB)
    attempt.root = attempt.ticket.number + 1
    loop.moves.keep("s1", "one of its trials ran out of memory")
    loop.moves.end_exclusivity(attempt)
    assert orders(attempt) == [] and attempt.exclusive


def test_a_peak_is_known_once_it_has_not_grown_for_a_third_of_the_trial(loop: Loop) -> None:
    """Where each step is reported the first report comes before an optimizer's state is held beside a whole step."""
    attempt = loop.run("a", 10 * GIB, 2 * GIB)
    attempt.settled, attempt.started_at_s = False, 100.0

    def read(at_s: float, peak: int) -> bool:
        own = peak - loop.ledger.overhead_bytes
        attempt.sample = MemorySample(torch_reserved_bytes=own, max_torch_reserved_bytes=own, cuda_initialized=True)
        loop.memory._watch_peak(attempt, at_s)
        return attempt.settled

    assert [read(at_s, 2 * GIB) for at_s in (101.0, 101.4)] == [False, False]
    assert not read(101.5, 3 * GIB) and loop.wakes == 0, "the second step holds more"
    assert not read(102.2, 3 * GIB), "0.7 s of 2.2"
    assert read(102.3, 3 * GIB) and loop.wakes == 1 and loop.moves.shrinkable_bytes() > 0
    assert not read(120.0, 5 * GIB) and loop.moves.shrinkable_bytes() == 0, "it evaluates"
    assert not read(125.0, 5 * GIB), "it may go on for as long"
    assert read(130.1, 5 * GIB)


def test_a_trial_that_asks_gets_what_is_free_and_else_a_no_with_the_reason(loop: Loop) -> None:
    attempt, other = loop.run("a", 8 * GIB, 7 * GIB), loop.run("b", 14 * GIB, GIB)
    loop.moves.on_asked(attempt, 7 * GIB, loop.card.now_s)
    assert attempt.lease_at_end_bytes > 8 * GIB and len(orders(attempt)) == 1
    loop.card.use("a", attempt.lease_at_end_bytes)
    loop.card.look()
    held = attempt.lease_at_end_bytes - loop.ledger.overhead_bytes
    loop.moves.on_asked(attempt, held, loop.card.now_s)
    loop.moves.on_asked(attempt, held, loop.card.now_s)
    assert "cannot grow" in refusals(attempt)[-1] and "GPU 0" in refusals(attempt)[-1]
    assert attempt.refused_growth == refusals(attempt)[-1]
    assert orders(other) == [], "nobody is cut for it"


def test_one_that_got_back_all_it_gave_was_not_harmed_by_it(loop: Loop) -> None:
    attempt = loop.run("a", 10 * GIB, 4 * GIB)
    loop.short(16 * GIB)
    loop.answer(attempt, held=3 * GIB)
    assert attempt.shrunk_from_bytes == 10 * GIB
    loop.moves.on_asked(attempt, 9 * GIB, loop.card.now_s)
    assert attempt.lease_at_end_bytes >= 10 * GIB and attempt.shrunk_from_bytes is None


@pytest.mark.parametrize(("vram", "request_bytes"), [(8 * GIB, 8 * GIB), ("auto", None)])
def test_what_cannot_grow_is_told_why(loop: Loop, vram: Any, request_bytes: int | None) -> None:
    attempt = loop.run("a", request_bytes, 7 * GIB, vram=vram)
    loop.moves.on_asked(attempt, 7 * GIB, loop.card.now_s)
    assert orders(attempt) == [] and len(refusals(attempt)) == 1


# -- lending --------------------------------------------------------------------------------------------------------


def test_an_unsure_trial_begins_with_more_and_gives_it_back_when_another_one_wants_it(loop: Loop) -> None:
    attempt = loop.run("a", 4 * GIB, 0, around=False)
    attempt.started_at_s = loop.card.now_s
    free = loop.card.free_bytes
    loop.moves.lend(attempt, 16 * GIB, loop.card.now_s)
    assert attempt.lease_bytes == attempt.lease_at_end_bytes == 4 * GIB + free // 2
    assert loop.moves.shrinkable_bytes() == free // 2, "whoever asks for trials sees it as free"
    loop.short(free - GIB)
    loop.answer(attempt, held=0)
    assert free - GIB <= loop.card.free_bytes < free
    assert attempt.lease_bytes == attempt.lease_at_end_bytes
    assert attempt.shrunk_from_bytes is None, "it has what it asked for: an error now would be its own"
    loop.moves.on_reading()
    loop.short(free)
    loop.answer(attempt, held=0)
    loop.moves.on_reading()
    assert (attempt.lease_at_end_bytes, attempt.lent_bytes) == (4 * GIB, 0)
    loop.short(22 * GIB)
    assert loop.moves.shrinkable_bytes() == 0 and len(orders(attempt)) == 2, "what it asked for is its own"


def test_what_it_holds_of_a_loan_is_not_called_back(loop: Loop) -> None:
    attempt = loop.run("a", 4 * GIB, 9 * GIB, around=False)
    attempt.started_at_s = loop.card.now_s
    attempt.lent_bytes = 8 * GIB
    attempt.lease_bytes = attempt.lease_at_end_bytes = loop.ledger.grow("a", 12 * GIB, loop.card.now_s).lease_bytes
    assert 1 * GIB < loop.moves.shrinkable_bytes() < 3 * GIB


def test_nothing_is_lent_beyond_the_wish_nor_to_whoever_could_not_give_it_back(loop: Loop) -> None:
    sure = loop.run("a", 2 * GIB, 0, around=False)
    loop.moves.lend(sure, None, loop.card.now_s)
    wishes = loop.run("b", 2 * GIB, 0, around=False)
    loop.moves.lend(wishes, 3 * GIB, loop.card.now_s)
    says = loop.run("c", 2 * GIB, 0, vram="2GiB", around=False)
    loop.moves.lend(says, 9 * GIB, loop.card.now_s)
    assert [item.lease_at_end_bytes // GIB for item in (sure, wishes, says)] == [2, 3, 2]


def test_one_that_is_tried_again_is_lent_all_that_is_free(loop: Loop) -> None:
    attempt = loop.run("a", 4 * GIB, 0, around=False)
    attempt.root = attempt.ticket.number - 1
    loop.moves.lend(attempt, 64 * GIB, loop.card.now_s)
    assert loop.card.free_bytes == 0


def test_a_client_of_mps_is_lent_as_others_and_grows_back_to_what_it_began_with_and_no_further(loop: Loop) -> None:
    """The driver's limit is fixed at its start: a larger cap would be a promise that the driver does not keep."""
    attempt = loop.run("a", 4 * GIB, 0, around=False)
    attempt.started_at_s = loop.card.now_s
    loop.moves.lend(attempt, 8 * GIB, loop.card.now_s)
    attempt.mps, attempt.mps_limit_bytes = True, attempt.lease_bytes
    assert attempt.mps_limit_bytes == 8 * GIB
    loop.short(loop.card.free_bytes + 2 * GIB)
    loop.answer(attempt, held=4 * GIB)
    loop.moves.on_reading()
    assert attempt.lease_at_end_bytes < 6 * GIB
    loop.moves.on_asked(attempt, 7 * GIB, loop.card.now_s)
    assert attempt.lease_at_end_bytes == 8 * GIB
    loop.moves.on_asked(attempt, 8 * GIB, loop.card.now_s)
    assert attempt.lease_at_end_bytes == 8 * GIB
    assert "MPS" in str(attempt.refused_growth)


def test_a_lease_that_falls_below_what_was_asked_for_is_a_shrunk_one_all_the_same(loop: Loop) -> None:
    attempt = loop.run("a", 8 * GIB, 2 * GIB, around=False)
    attempt.started_at_s = loop.card.now_s
    loop.moves.lend(attempt, 16 * GIB, loop.card.now_s)
    assert attempt.lent_bytes > 4 * GIB
    attempt.been_around = attempt.settled = True
    loop.short(18 * GIB)
    loop.answer(attempt, held=GIB)
    assert attempt.lease_at_end_bytes < 8 * GIB
    assert (attempt.lent_bytes, attempt.shrunk_from_bytes) == (0, 8 * GIB)
