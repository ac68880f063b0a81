"""What follows from how an attempt ended, as a table."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState

from vrampool.messages import EndKind, ObjectiveRef, SubmissionSpec, Verdict
from vrampool.retries import Final, Pending, Retry, Step, next_step, roots
from vrampool.units import GIB

START = datetime.datetime(2026, 1, 1)
SPEC = SubmissionSpec("s1", "study", ObjectiveRef("import", "m:f"), max_infra_retries=2, max_victim_retries=3)
LARGEST = 64 * GIB


def attempt(
    number: int,
    end: str | None = None,
    *,
    state: TrialState = TrialState.FAIL,
    request_bytes: int | None = 8 * GIB,
    claimed: bool = True,
    lost: str | None = None,
    cancelled: str | None = None,
    submission: str = "s1",
    **facts: Any,
) -> FrozenTrial:
    """Return an attempt at trial 0, the one before it being its parent."""
    attrs: dict[str, Any] = {
        "vrampool:mark": {
            "submission": submission,
            "root": 0 if number else None,
            "retry_of": number - 1 if number else None,
            "attempt": number + 1,
            "wire": 1,
        },
        "vrampool:request": {"bytes": request_bytes, "reason": "declared"},
    }
    if claimed:
        attrs["vrampool:claim:w1"] = 1.0
    if end is not None:
        attrs["vrampool:attempt"] = {"end": str(end), "device": "GPU-a", "worker": "w1", **facts}
    if lost is not None:
        attrs["vrampool:lost"] = lost
    if cancelled is not None:
        attrs["vrampool:cancelled"] = cancelled
    started = claimed and state != TrialState.WAITING
    return FrozenTrial(
        number=number,
        trial_id=number + 100,
        state=state,
        value=1.0 if state == TrialState.COMPLETE else None,
        datetime_start=START if started else None,
        datetime_complete=START if state.is_finished() else None,
        params={},
        distributions={},
        user_attrs=attrs,
        system_attrs={},
        intermediate_values={},
    )


def oom(number: int, verdict: Verdict, lease: int, **facts: Any) -> FrozenTrial:
    facts = {"lease_bytes": lease * GIB, "lease_at_end_bytes": lease * GIB, **facts}
    return attempt(number, EndKind.OOM, verdict=str(verdict), **facts)


def step(*attempts: FrozenTrial, spec: SubmissionSpec = SPEC, largest_bytes: int | None = LARGEST) -> Step:
    """Decide on the last of some attempts."""
    return next_step(attempts[-1], spec, attempts, largest_bytes=largest_bytes)


@pytest.mark.parametrize(
    ("trial", "expected"),
    [
        (attempt(0, state=TrialState.WAITING, claimed=False), Pending("waiting")),
        (attempt(0, state=TrialState.RUNNING), Pending("running")),
        (attempt(0, EndKind.COMPLETE, state=TrialState.COMPLETE), Final(True, "complete")),
        (attempt(0, EndKind.PRUNED, state=TrialState.PRUNED), Final(True, "pruned")),
        (attempt(0, state=TrialState.PRUNED), Final(True, "pruned")),
        (
            attempt(0, EndKind.INFEASIBLE, state=TrialState.PRUNED, text="out of memory at the full card\nmore"),
            Final(True, "out of memory at the full card"),
        ),
        (attempt(0, EndKind.INFEASIBLE, state=TrialState.PRUNED), Final(True, "fits no device")),
        (attempt(0, EndKind.FAILED, text="ValueError: x"), Final(True, "ValueError: x")),
        (attempt(0, EndKind.REFUSED, text="no such module"), Final(True, "no such module")),
        (attempt(0, EndKind.TIMEOUT, text="over 5 s"), Final(True, "over 5 s")),
        (attempt(0, EndKind.CANCELLED, text="on request"), Final(False, "on request")),
        (attempt(0, cancelled="stopped", claimed=False), Final(False, "stopped")),
        (attempt(0, "a kind of a newer worker"), Final(True, "a kind of a newer worker")),
        (attempt(0), Final(True, "failed from outside")),
        (attempt(0, claimed=False), Final(True, "failed from outside")),
        (attempt(0, EndKind.COMPLETE), Final(True, "failed from outside")),
        (
            attempt(0, EndKind.PREEMPTED, text="the worker shuts down"),
            Retry(8 * GIB, "handed back by w1: the worker shuts down"),
        ),
        (attempt(0, EndKind.CRASHED, text="killed by signal 9"), Retry(8 * GIB, "killed by signal 9")),
        (attempt(0, EndKind.DEVICE_LOST), Retry(8 * GIB, "device_lost")),
        (attempt(0, lost="worker w1 went away"), Retry(8 * GIB, "worker w1 went away")),
        (attempt(0, lost="gone", request_bytes=None), Retry(None, "gone")),
        (attempt(0, EndKind.COMPLETE, lost="gone after the facts"), Retry(8 * GIB, "gone after the facts")),
    ],
    ids=lambda value: "" if isinstance(value, FrozenTrial) else f"{type(value).__name__}-{value.reason}",
)
def test_one_attempt(trial: FrozenTrial, expected: Step) -> None:
    assert step(trial) == expected


@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL])
def test_a_trial_that_a_foreign_process_took_is_not_counted(state: TrialState) -> None:
    """Left waiting for it, the submission would never end when that process dies."""
    trial = attempt(0, state=state, claimed=False)
    trial.datetime_start = START
    assert step(trial) == Final(False, "taken by another process that works on the study")


def test_an_attempt_that_was_retried_already_asks_for_nothing() -> None:
    first, second = attempt(0, lost="gone"), attempt(1, state=TrialState.WAITING, claimed=False)
    assert isinstance(next_step(first, SPEC, [first, second], largest_bytes=None), Pending)


def test_infra_failures_of_all_kinds_share_their_retries() -> None:
    crashed = attempt(0, EndKind.CRASHED, text="killed by signal 9")
    lost = attempt(1, lost="gone")
    again = attempt(2, EndKind.CRASHED, text="killed by signal 9")
    assert isinstance(step(crashed, lost), Retry)
    assert step(crashed, lost, again) == Final(True, "killed by signal 9, 3 attempts")


@pytest.mark.parametrize(("limit", "losses", "request_bytes"), [(2, 1, 8 * GIB), (2, 2, None), (1, 1, None)])
def test_the_last_attempt_after_lost_workers_is_alone(limit: int, losses: int, request_bytes: int | None) -> None:
    """One of the trials that were lost together may kill its worker each time: the others must not run beside it."""
    spec = SubmissionSpec("s1", "study", ObjectiveRef("import", "m:f"), max_infra_retries=limit)
    found = step(*(attempt(number, lost="gone") for number in range(losses)), spec=spec)
    assert isinstance(found, Retry)
    assert found.request_bytes == request_bytes


def test_the_last_attempt_after_a_crash_of_its_own_needs_no_device_for_itself() -> None:
    lost, crashed = attempt(0, lost="gone"), attempt(1, EndKind.CRASHED, text="killed by signal 9")
    assert step(lost, crashed) == Retry(8 * GIB, "killed by signal 9")


def test_preempted_attempts_and_victims_are_free_of_charge() -> None:
    free = [attempt(number, EndKind.PREEMPTED) for number in range(10)]
    victim = oom(10, Verdict.VICTIM, 8)
    crashed = [attempt(11, EndKind.CRASHED), attempt(12, EndKind.CRASHED)]
    assert isinstance(step(*free), Retry)
    assert isinstance(step(*free, victim, *crashed), Retry)


def test_timeouts_are_retried_like_infra_failures_when_the_submission_says_so() -> None:
    spec = SubmissionSpec("s1", "study", ObjectiveRef("import", "m:f"), retry_timeouts=True, max_infra_retries=1)
    late = [attempt(number, EndKind.TIMEOUT, text="over 5 s") for number in range(2)]
    assert step(late[0], spec=spec) == Retry(8 * GIB, "over 5 s")
    assert step(*late, spec=spec) == Final(True, "over 5 s, 2 attempts")


def test_no_infra_retries_means_none() -> None:
    spec = SubmissionSpec("s1", "study", ObjectiveRef("import", "m:f"), max_infra_retries=0)
    assert step(attempt(0, lost="gone"), spec=spec) == Final(True, "gone")


def test_a_whole_device_that_had_less_than_an_earlier_lease_is_not_the_end() -> None:
    """A smaller card took it; the larger one still may. But not for ever."""
    small = [oom(number, Verdict.CULPRIT, 30, request_bytes=None) for number in range(1, 13)]
    found = step(oom(0, Verdict.CULPRIT, 50), *small[:1])
    assert isinstance(found, Retry) and (found.request_bytes, found.beyond_bytes) == (None, 50 * GIB)
    assert isinstance(step(oom(0, Verdict.CULPRIT, 50), *small), Final)


@pytest.mark.parametrize("verdict", [Verdict.CULPRIT, Verdict.UNKNOWN, Verdict.SWALLOWED])
def test_a_culprit_gets_half_as_much_again(verdict: Verdict) -> None:
    found = step(oom(0, verdict, 8, peak_bytes=7 * GIB))
    assert found == Retry(12 * GIB, "out of memory with 8.0 GiB: tried again with 12.0 GiB", wish_bytes=48 * GIB)


@pytest.mark.parametrize(("wish_gib", "expected_gib"), [(32, 16), (16, 16), (15, 12), (None, 12)])
def test_one_of_which_little_was_known_gets_twice_as_much(wish_gib: int | None, expected_gib: int) -> None:
    """It could as well have done with twice its lease: then half as much again may cost it an attempt more."""
    failed = oom(0, Verdict.CULPRIT, 8, peak_bytes=7 * GIB)
    if wish_gib is not None:
        failed.user_attrs["vrampool:request"]["wish"] = wish_gib * GIB
    found = step(failed)
    assert isinstance(found, Retry) and found.request_bytes == expected_gib * GIB


def test_a_culprit_that_says_what_it_asked_for_gets_that_and_a_fifth() -> None:
    found = step(oom(0, Verdict.CULPRIT, 8, peak_bytes=8 * GIB, asked_bytes=12 * GIB))
    assert isinstance(found, Retry) and found.request_bytes == 24 * GIB


def test_one_that_failed_before_any_reading_held_at_least_its_overhead() -> None:
    found = step(oom(0, Verdict.CULPRIT, 2, asked_bytes=4 * GIB, overhead_bytes=GIB))
    assert isinstance(found, Retry) and found.request_bytes == int(1.2 * 5 * GIB)


def test_one_that_swallowed_the_error_needs_what_it_held_then_and_asked_for() -> None:
    """What it did afterwards, with half the batch, is another configuration's need."""
    found = step(oom(0, Verdict.SWALLOWED, 8, peak_bytes=7 * GIB, held_bytes=GIB, asked_bytes=10 * GIB))
    assert isinstance(found, Retry) and found.request_bytes == int(1.2 * 11 * GIB)


def test_a_culprit_that_needs_more_than_any_device_gets_a_whole_one_that_has_more_than_it_had() -> None:
    """Not so many bytes: with a desktop on the card they would never be free."""
    found = step(oom(0, Verdict.CULPRIT, 50))
    assert isinstance(found, Retry) and (found.request_bytes, found.beyond_bytes) == (None, 50 * GIB)
    assert "all that a device with more than 50.0 GiB has" in found.reason


def test_a_culprit_that_would_get_almost_all_of_a_device_gets_all_of_it() -> None:
    """Next to nothing fits beside it, and one attempt after another would only come closer."""
    most, more = step(oom(0, Verdict.CULPRIT, 32)), step(oom(0, Verdict.CULPRIT, 33))
    assert isinstance(most, Retry) and most.request_bytes == 48 * GIB
    assert isinstance(more, Retry) and (more.request_bytes, more.beyond_bytes) == (None, 33 * GIB)


def test_a_culprit_that_had_all_that_any_device_has_is_not_tried_again() -> None:
    first, second = oom(0, Verdict.CULPRIT, 50), oom(1, Verdict.CULPRIT, 64)
    third = oom(2, Verdict.CULPRIT, 64)
    for largest_bytes in (LARGEST, None):  # whoever shows progress may not know the devices
        assert step(first, second, third, largest_bytes=largest_bytes) == Final(
            True, "out of memory with 64.0 GiB, the most that any device has"
        )


def test_a_culprit_of_which_nothing_is_known_gets_a_device_for_itself() -> None:
    assert step(oom(0, Verdict.CULPRIT, 0)) == Retry(None, "out of memory; nothing is known of its need")


def test_the_lease_at_the_end_is_what_a_culprit_outgrew() -> None:
    found = step(oom(0, Verdict.CULPRIT, 4, lease_bytes=60 * GIB))
    assert isinstance(found, Retry) and found.request_bytes == 6 * GIB


def test_a_victim_goes_elsewhere_then_gets_a_device_for_itself_then_gives_up() -> None:
    victims = [oom(number, Verdict.VICTIM, 8) for number in range(7)]
    assert step(*victims[:1]) == Retry(8 * GIB, "out of memory by others' use of the device", "GPU-a")
    assert step(*victims[:3]) == Retry(8 * GIB, "out of memory by others' use of the device", "GPU-a")
    fourth = step(*victims[:4])
    assert isinstance(fourth, Retry) and fourth.request_bytes is None and fourth.avoid_device is None
    assert isinstance(step(*victims[:6]), Retry)
    assert step(*victims[:7]) == Final(True, "out of memory by others' use of the device, 7 attempts")


def test_an_oom_by_our_own_shrinking_is_tried_again_as_it_was() -> None:
    assert step(oom(0, Verdict.SHRINK, 3)) == Retry(8 * GIB, "out of memory after its lease was shrunk")


def test_host_memory_on_a_gpu_is_tried_once_more_without_a_larger_request() -> None:
    assert step(oom(0, Verdict.HOST, 8)) == Retry(8 * GIB, "host memory ran out")
    assert step(oom(0, Verdict.HOST, 8), oom(1, Verdict.HOST, 8)) == Final(True, "host memory ran out, 2 attempts")


def test_roots_are_found_among_all_trials_of_a_study() -> None:
    lost, running = attempt(0, lost="gone"), attempt(1, state=TrialState.RUNNING)
    other = attempt(0, EndKind.COMPLETE, state=TrialState.COMPLETE, submission="s2")
    other.number = 2
    done = attempt(0, EndKind.COMPLETE, state=TrialState.COMPLETE)
    done.number = 3
    cancelled = attempt(0, cancelled="stopped", claimed=False)
    cancelled.number = 4
    foreign = attempt(0, state=TrialState.COMPLETE)
    foreign.user_attrs, foreign.number = {}, 5

    found = roots([foreign, cancelled, done, other, running, lost], SPEC)

    assert [(root.number, root.last.number, root.finished, root.counted) for root in found] == [
        (0, 1, False, False),
        (3, 3, True, True),
        (4, 4, True, False),
    ]
    assert [trial.number for trial in found[0].attempts] == [0, 1]
