"""How an attempt ended, whose fault it was that memory ran out, and the paragraph that tells it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from vrampool.messages import EndKind, MemorySample, ObjectiveRef, Outcome, OutcomeKind, SubmissionSpec, Ticket, Verdict
from vrampool.units import GIB, MIB
from vrampool_worker.attempts import Attempt, Scene
from vrampool_worker.endings import End, Place, decide
from vrampool_worker.settlement import conclude

PLACE = Place(
    worker="w1",
    host="h",
    device="GPU-a",
    device_name="NVIDIA X",
    device_kind="cuda",
    budget_bytes=20 * GIB,
    grantable_bytes=20 * GIB,
    largest_budget_bytes=20 * GIB,
    overhead_bytes=GIB,
    free_bytes=12 * GIB,
    device_label="GPU 0",
)
CPU = dataclasses.replace(PLACE, device_kind="cpu", device="cpu", overhead_bytes=None)


def attempt(
    outcome: Outcome | None = None, *, oom: str = "auto", sample: MemorySample | None = None, **facts: Any
) -> Attempt:
    """An attempt with a lease of 8 GiB that held 5 GiB of it."""
    values: dict[str, Any] = {"lease_bytes": 8 * GIB, "lease_at_end_bytes": 8 * GIB, "cap_bytes": 7 * GIB, **facts}
    request = values.pop("request", 8 * GIB)
    made = Attempt("j", "l", Ticket("p", "digits", "s1", 7, 1, request), 0.0, 0.0, **values)
    made.spec = SubmissionSpec("s1", "digits", ObjectiveRef("import", "m:f"), oom=oom)
    made.outcome = outcome
    made.sample = sample or MemorySample(max_torch_reserved_bytes=4 * GIB, torch_reserved_bytes=4 * GIB)
    return made


def end_of(made: Attempt, place: Place = PLACE) -> End:
    peak = made.sample.max_torch_reserved_bytes
    return decide(made, place, None if peak is None else peak + (place.overhead_bytes or 0))


def swallowed(ooms: int = 1, handled: int = 0, **figures: int) -> MemorySample:
    told = {"asked": 6, "allowed": 7, "free": 12, "reserved": 3} | figures
    return MemorySample(
        max_torch_reserved_bytes=4 * GIB,
        num_ooms=ooms,
        num_ooms_handled=handled,
        **{f"oom_{name}_bytes": value * GIB for name, value in told.items()},
    )


VALUE = Outcome(OutcomeKind.VALUE, values=[0.5])


def test_a_client_of_mps_that_meets_the_drivers_limit_is_nobodys_victim() -> None:
    """It is met before torch's cap where the driver takes more than was thought; what is free is of that limit."""
    text = "CUDA out of memory. Tried to allocate 196.00 MiB."
    memory = {"device": "cuda", "asked_bytes": 196 * MIB, "free_bytes": 42 * MIB, "in_use_bytes": 8 * GIB - 42 * MIB}
    outcome = Outcome(OutcomeKind.OOM, type_name="torch.OutOfMemoryError", text=text, memory=memory)
    client = attempt(outcome, mps=True, mps_limit_bytes=8 * GIB)
    assert end_of(client).verdict == Verdict.CULPRIT
    assert "the driver lets a client of MPS have" in end_of(client).judgement
    client = attempt(outcome, mps=True, mps_limit_bytes=16 * GIB, lease_at_end_bytes=16 * GIB, scene=Scene(0))
    assert end_of(client).verdict == Verdict.VICTIM, "the device itself is full"


# ---- swallowed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (VALUE, "returned 0.5"),
        (Outcome(OutcomeKind.PRUNED), "pruned itself"),
        (Outcome(OutcomeKind.FAILED, type_name="builtins.ValueError", text="no"), "then failed (ValueError: no)"),
    ],
)
def test_an_error_that_was_swallowed_makes_no_result(outcome: Outcome, words: str) -> None:
    end = end_of(attempt(outcome, sample=swallowed()))
    assert (end.kind, end.verdict, end.values) == (EndKind.OOM, Verdict.SWALLOWED, None)
    assert words in end.text and "oom='user'" in end.text
    assert (end.asked_bytes, end.held_bytes) == (6 * GIB, 4 * GIB)


def test_errors_that_a_helper_caught_on_purpose_and_those_of_a_submission_that_wants_them_count_for_nothing() -> None:
    assert end_of(attempt(VALUE, sample=swallowed(2, 2))).kind == EndKind.COMPLETE
    assert end_of(attempt(VALUE, sample=swallowed(), oom="user")).kind == EndKind.COMPLETE
    assert end_of(attempt(VALUE, sample=swallowed(2, 1))).kind == EndKind.OOM


def test_one_that_swallowed_an_error_of_a_full_card_is_a_victim() -> None:
    end = end_of(attempt(VALUE, sample=swallowed(asked=2, free=0)))
    assert (end.kind, end.verdict) == (EndKind.OOM, Verdict.VICTIM)


def test_one_whose_lease_we_made_smaller_is_not_to_blame_but_for_what_it_swallowed_before() -> None:
    shrunk = {"lease_bytes": 12 * GIB, "shrunk_from_bytes": 12 * GIB}
    assert end_of(attempt(VALUE, sample=swallowed(), **shrunk)).verdict == Verdict.SHRINK
    earlier = attempt(VALUE, sample=swallowed(asked=9, allowed=11), ooms_at_shrink=1, **shrunk)
    assert end_of(earlier).verdict == Verdict.SWALLOWED


def test_where_no_device_has_more_what_was_swallowed_is_the_objectives_own_result() -> None:
    whole = {"lease_bytes": 20 * GIB, "lease_at_end_bytes": 20 * GIB}
    assert end_of(attempt(VALUE, sample=swallowed(asked=30, allowed=19), **whole)).values == [0.5]
    alone = {"lease_bytes": 18 * GIB, "lease_at_end_bytes": 18 * GIB, "request": None, "exclusive": True}
    assert end_of(attempt(VALUE, sample=swallowed(asked=30, allowed=17), **alone)).values == [0.5]


def test_without_figures_of_the_allocator_the_last_sample_decides() -> None:
    blind = MemorySample(max_torch_reserved_bytes=7 * GIB, num_ooms=1)
    end = end_of(attempt(VALUE, sample=blind))
    assert (end.kind, end.verdict, end.asked_bytes) == (EndKind.OOM, Verdict.SWALLOWED, None)


# ---- shrunk, whole, host memory ----------------------------------------------------------------------


def test_an_oom_below_the_lease_it_had_before_is_ours_and_beyond_it_its_own() -> None:
    memory = {"device": "cuda", "asked_bytes": 5 * GIB, "allowed_bytes": 7 * GIB, "free_bytes": 12 * GIB}
    shrunk = {"lease_bytes": 12 * GIB, "shrunk_from_bytes": 12 * GIB}
    ours = end_of(attempt(Outcome(OutcomeKind.OOM, memory=memory), **shrunk))
    assert (ours.verdict, ours.infeasible) == (Verdict.SHRINK, False)
    own = end_of(attempt(Outcome(OutcomeKind.OOM, memory={**memory, "asked_bytes": 9 * GIB}), **shrunk))
    assert (own.verdict, own.infeasible) == (Verdict.CULPRIT, False)
    alone = {"lease_bytes": 20 * GIB, "shrunk_from_bytes": 20 * GIB, "request": None}
    beyond = end_of(attempt(Outcome(OutcomeKind.OOM, memory={**memory, "asked_bytes": 30 * GIB}), **alone))
    assert (beyond.verdict, beyond.infeasible) == (Verdict.CULPRIT, True), "it had all there is before it was shrunk"


@pytest.mark.parametrize(("lacks_mib", "infeasible"), [(6, True), (500, False)])
def test_a_few_mebibytes_more_are_no_other_device(lacks_mib: int, infeasible: bool) -> None:
    """A lease that was lent to is a little less than all; the attempt after it would be the same one again."""
    memory = {"device": "cuda", "asked_bytes": GIB // 2, "allowed_bytes": 19 * GIB, "free_bytes": 4 * GIB}
    lease_bytes = 20 * GIB - lacks_mib * MIB
    made = attempt(Outcome(OutcomeKind.OOM, memory=memory), lease_bytes=lease_bytes, lease_at_end_bytes=lease_bytes)
    assert end_of(made).infeasible is infeasible


@pytest.mark.parametrize(("free", "told"), [(4, True), (1, False)])
def test_what_fits_the_card_and_not_its_budget_is_told_so(free: int, told: bool) -> None:
    memory = {"device": "cuda", "asked_bytes": GIB // 2, "allowed_bytes": 19 * GIB, "free_bytes": free * GIB}
    end = end_of(attempt(Outcome(OutcomeKind.OOM, memory=memory), lease_bytes=20 * GIB, lease_at_end_bytes=20 * GIB))
    assert end.infeasible and "all that trials may have of a device" in end.text
    assert ("a larger --budget" in end.text) is told


def test_on_the_cpu_too_a_shrunk_lease_is_our_fault() -> None:
    memory = {"device": "host", "asked_bytes": 2 * GIB}
    made = attempt(Outcome(OutcomeKind.OOM, memory=memory), lease_bytes=12 * GIB, shrunk_from_bytes=12 * GIB)
    assert end_of(made, CPU).verdict == Verdict.SHRINK
    assert end_of(attempt(Outcome(OutcomeKind.OOM, memory=memory)), CPU).verdict == Verdict.CULPRIT


@pytest.mark.parametrize(
    ("place", "expected"), [(PLACE, (EndKind.CRASHED, None)), (CPU, (EndKind.OOM, Verdict.CULPRIT))]
)
def test_the_kernels_own_kill_is_host_memory(place: Place, expected: tuple[str, str | None]) -> None:
    """On a GPU it raises no request; on the CPU host memory is what the lease is of."""
    end = end_of(attempt(signal=9, kernel_killed="the host ran out of memory"), place)
    assert (end.kind, end.verdict) == expected
    assert "killed by signal 9 (SIGKILL): host memory ran out" in end.text
    assert end_of(attempt(signal=9), place).kind == EndKind.CRASHED
    little = MemorySample(max_torch_reserved_bytes=MIB)
    small = attempt(signal=9, kernel_killed="the host ran out of memory", sample=little)
    assert end_of(small, place).kind == EndKind.CRASHED, "one that held next to nothing was not the kernel's choice"


def test_what_a_process_said_before_it_aborted_tells_of_host_memory() -> None:
    said = "terminate called after throwing an instance of 'std::bad_alloc'"
    end = end_of(attempt(signal=6, last_words=said))
    assert (end.kind, end.verdict) == (EndKind.OOM, Verdict.HOST)
    assert end_of(attempt(signal=11, last_words=said)).kind == EndKind.CRASHED
    assert end_of(attempt(exit_code=1, last_words="libgomp: Thread creation failed")).verdict == Verdict.HOST
    assert end_of(attempt(exit_code=0, last_words=said)).kind == EndKind.CRASHED


# ---- the story ---------------------------------------------------------------------------------------


def test_the_story_says_what_was_asked_had_and_capped_what_was_free_and_who_else_held_what() -> None:
    memory = {"device": "cuda", "asked_bytes": 5 * GIB, "allowed_bytes": 7 * GIB, "free_bytes": 12 * GIB}
    made = attempt(
        Outcome(OutcomeKind.OOM, memory=memory, text="CUDA out of memory"),
        request_reason="the largest peak of 3 trials",
        sample=MemorySample(max_torch_reserved_bytes=4 * GIB, num_ooms=1, num_alloc_retries=2),
        scene=Scene(12 * GIB, ("digits/3 2.0 GiB of its lease of 3.0 GiB", "other programs 1.2 GiB")),
        refused_growth="cannot grow to 9.0 GiB: GPU 0 has nothing free",
    )
    facts = conclude(made, PLACE).facts
    for words in (
        "It asked for 8.0 GiB (the largest peak of 3 trials) and had a lease of 8.0 GiB on GPU 0, ",
        "whose budget is 20.0 GiB.",
        "Its cap was 7.0 GiB for torch's allocator, with 1.0 GiB beside it for the driver.",
        "It held at most 5.0 GiB, and then asked for 5.0 GiB more; a larger lease was not to be had: cannot grow",
        "1 allocation failed. Its allocator gave back its cache and tried again 2 times.",
        "12.0 GiB of the device were free at its end, and others held it too: ",
        "digits/3 2.0 GiB of its lease of 3.0 GiB, other programs 1.2 GiB.",
        "Verdict: culprit: it asked for 5.0 GiB beyond its cap of 7.0 GiB",
    ):
        assert words in facts.story
    assert "\n" not in facts.story
    assert (facts.verdict, facts.num_ooms, facts.num_alloc_retries) == (Verdict.CULPRIT, 1, 2)
    assert facts.device_free_bytes == 12 * GIB


def test_a_story_of_an_attempt_that_went_well_names_no_verdict() -> None:
    facts = conclude(attempt(VALUE, request=None, scene=Scene(10 * GIB)), PLACE).facts
    assert "It asked for a device of its own" in facts.story
    assert "Verdict" not in facts.story
    assert facts.story.endswith("10.0 GiB of the device were free at its end, and nobody else held any of it.")


def test_a_story_is_bounded_whoever_else_is_there() -> None:
    others = tuple(f"{'long' * 20}/{number} lease of {number} MiB" for number in range(40))
    story = conclude(attempt(VALUE, scene=Scene(0, others)), PLACE).facts.story
    assert "and 34 more" in story and len(story) < 1600
    assert conclude(attempt(VALUE, cap_bytes=None, lease_bytes=100 * MIB), CPU).facts.story.count("the readings") == 1
