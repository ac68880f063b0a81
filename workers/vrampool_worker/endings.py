"""How an attempt ended, and whose fault it was when memory ran out: pure. One function, `decide`, and its cases."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass

from vrampool.memory.verdicts import Judgement, MemoryFault, MemoryKind, VerdictNumbers, classify_log, judge
from vrampool.messages import EndKind, Outcome, OutcomeKind, Verdict
from vrampool.units import MIB, format_bytes
from vrampool_worker.attempts import Attempt

_GUILTY = (Verdict.CULPRIT, Verdict.UNKNOWN)


#: So little more than a trial has had changes nothing.
_NO_MORE_BYTES = 64 * MIB
#: Free memory of a device that no larger budget would make use of.
_LEFT_BY_ALLOCATORS_BYTES = 512 * MIB


@dataclass(frozen=True)
class Place:
    """Where an attempt ran, and what that place can hold."""

    worker: str
    host: str
    device: str
    device_name: str
    device_kind: str  #: "cuda" or "cpu"
    budget_bytes: int
    grantable_bytes: int  #: of the budget, what a trial can get at most
    largest_budget_bytes: int  #: the most that any device the pool saw in 24 h can give
    overhead_bytes: int | None
    free_bytes: int | None  #: of the device, at its last reading
    device_label: str = ""  #: as sentences name it: "GPU 0"


@dataclass(frozen=True)
class End:
    """What is made of an attempt."""

    kind: EndKind
    text: str = ""
    verdict: Verdict | None = None
    values: list[float] | None = None
    by_objective: bool = False
    infeasible: bool = False
    judgement: str = ""  #: whose fault it was that memory ran out, and why
    asked_bytes: int | None = None  #: the allocation that failed,
    held_bytes: int | None = None  #: and what the trial held then


def decide(attempt: Attempt, place: Place, peak_bytes: int | None) -> End:
    """Decide how an attempt ended. Called when its whole tree of processes is gone."""
    outcome, ending = attempt.outcome, attempt.ending
    finished = outcome is not None and outcome.kind in (OutcomeKind.VALUE, OutcomeKind.PRUNED)
    if ending is not None and ending.kind is EndKind.OOM:
        # On the CPU a reading found it above its lease; on a GPU too, where what it took was its neighbours'.
        on_cpu = place.device_kind == "cpu"
        fault = MemoryFault(MemoryKind.HOST if on_cpu else MemoryKind.CUDA, in_use_bytes=peak_bytes)
        return _out_of_memory(attempt, place, fault, ending.text, peak_bytes)
    if ending is not None and (ending.kind is EndKind.TIMEOUT or not finished):
        return End(ending.kind, ending.text)
    if outcome is None:
        return _without_outcome(attempt, place, peak_bytes)
    if outcome.kind == OutcomeKind.OOM:
        fault = MemoryFault.from_dict(outcome.memory)
        return _out_of_memory(attempt, place, fault, outcome.text, peak_bytes)
    return _swallowed(attempt, place, outcome, peak_bytes) or _of_objective(outcome)


def _of_objective(outcome: Outcome) -> End:
    if outcome.kind == OutcomeKind.VALUE:
        return End(EndKind.COMPLETE, values=outcome.values, by_objective=True)
    if outcome.kind == OutcomeKind.PRUNED:
        return End(EndKind.PRUNED, outcome.text, by_objective=True)
    return End(EndKind.FAILED, _describe(outcome), by_objective=True)


# ---- out of memory -----------------------------------------------------------------------------------


def _out_of_memory(attempt: Attempt, place: Place, fault: MemoryFault, text: str, peak_bytes: int | None) -> End:
    lease_bytes = attempt.lease_at_end_bytes
    judgement = _judge(attempt, place, fault, lease_bytes, peak_bytes, attempt.shrunk_from_bytes)
    infeasible = judgement.verdict in _GUILTY and _had_all(attempt, place, lease_bytes)
    words = "out of memory"
    if infeasible:
        words = f"out of memory with all that trials may have of a device ({format_bytes(place.largest_budget_bytes)}"
        spare_bytes = (fault.free_bytes or 0) - (fault.asked_bytes or 0)
        more = place.device_kind == "cuda" and spare_bytes > _LEFT_BY_ALLOCATORS_BYTES
        words += "; the device itself has more: a larger --budget lets them have it)" if more else ")"
    return End(
        EndKind.OOM,
        f"{words}: {judgement.reason}. {text}".strip(),
        judgement.verdict,
        infeasible=infeasible,
        judgement=f"{judgement.verdict}: {judgement.reason}",
        asked_bytes=fault.asked_bytes,
        held_bytes=fault.in_use_bytes,
    )


def _swallowed(attempt: Attempt, place: Place, outcome: Outcome, peak_bytes: int | None) -> End | None:
    """Return the end of an attempt whose objective caught out-of-memory errors and went on; None: it may do so.

    What it then returned is the result of another configuration than the one it was asked for, and would change the
    search in silence. With all that the largest device has it could not have done better, so there it counts.
    """
    count = attempt.unhandled_ooms
    if not count or attempt.spec is None or attempt.spec.oom == "user":
        return None
    sample, overhead_bytes = attempt.sample, place.overhead_bytes or 0
    shrunk_from_bytes = attempt.shrunk_from_bytes if count > attempt.ooms_at_shrink else None
    lease_bytes = attempt.lease_at_end_bytes if shrunk_from_bytes is not None else attempt.lease_bytes
    if sample.oom_allowed_bytes is not None:
        lease_bytes = min(attempt.lease_bytes, sample.oom_allowed_bytes + overhead_bytes)
    in_use_bytes = None if sample.oom_reserved_bytes is None else sample.oom_reserved_bytes + overhead_bytes
    fault = MemoryFault(
        MemoryKind.CUDA, sample.oom_asked_bytes, sample.oom_allowed_bytes, sample.oom_free_bytes, in_use_bytes
    )
    judgement = _judge(attempt, place, fault, lease_bytes, peak_bytes, shrunk_from_bytes)
    verdict = judgement.verdict
    if verdict in _GUILTY:
        if _had_all(attempt, place, lease_bytes):
            return None
        verdict = Verdict.SWALLOWED
    errors = "an out-of-memory error" if count == 1 else f"{count} out-of-memory errors"
    return End(
        EndKind.OOM,
        f"out of memory: the objective caught {errors} and {_what_it_did(outcome)}. That is the result of another "
        f"configuration, so it does not count, and the trial is tried again: {judgement.reason}. An objective that is "
        "meant to do so is submitted with oom='user', or uses vrampool.training.find_batch_size",
        verdict,
        judgement=f"{verdict}: the objective caught {errors} and went on; {judgement.reason}",
        asked_bytes=sample.oom_asked_bytes,
        held_bytes=in_use_bytes,
    )


def _judge(
    attempt: Attempt,
    place: Place,
    fault: MemoryFault,
    lease_bytes: int,
    peak_bytes: int | None,
    shrunk_from_bytes: int | None,
) -> Judgement:
    free_bytes = place.free_bytes if attempt.scene is None else attempt.scene.free_bytes
    return judge(
        fault,
        VerdictNumbers(
            lease_bytes=lease_bytes,
            used_bytes=peak_bytes,
            device_free_bytes=free_bytes,
            on_cpu=place.device_kind == "cpu",
            lease_before_shrink_bytes=shrunk_from_bytes,
            driver_limit_bytes=attempt.mps_limit_bytes if attempt.mps else None,
        ),
    )


def _had_all(attempt: Attempt, place: Place, lease_bytes: int) -> bool:
    """Say whether no device of the pool could have given it more."""
    if max(lease_bytes, attempt.shrunk_from_bytes or 0) >= place.largest_budget_bytes - _NO_MORE_BYTES:
        return True
    # An exclusive lease is all that was free of the device, which strangers may make less than its budget.
    alone = attempt.ticket.vram_bytes is None and (attempt.exclusive or attempt.shrunk_from_bytes is not None)
    return alone and place.grantable_bytes >= place.largest_budget_bytes


def _what_it_did(outcome: Outcome) -> str:
    if outcome.kind == OutcomeKind.VALUE:
        values = ", ".join(f"{value:g}" for value in outcome.values or ())
        return f"returned {values}"
    if outcome.kind == OutcomeKind.PRUNED:
        return "pruned itself"
    return f"then failed ({_describe(outcome)[:200]})"


# ---- without a word ----------------------------------------------------------------------------------


def _without_outcome(attempt: Attempt, place: Place, peak_bytes: int | None) -> End:
    text = _how_it_went(attempt)
    if attempt.signal == signals.SIGKILL and attempt.kernel_killed:
        text = f"{text}: host memory ran out, {attempt.kernel_killed}"
        # On a GPU that is not the memory its lease is of: the request stays. A trial that held little was killed by
        # somebody else, and the counter may be another process's.
        if place.device_kind != "cpu" or 2 * (peak_bytes or 0) < attempt.lease_at_end_bytes:
            return End(EndKind.CRASHED, text)
        return _out_of_memory(attempt, place, MemoryFault(MemoryKind.HOST), text, peak_bytes)
    died_by_itself = attempt.signal == signals.SIGABRT or bool(attempt.exit_code)
    fault = classify_log(attempt.last_words) if died_by_itself else None
    if fault is not None:  # what it printed tells more than how it died
        return _out_of_memory(attempt, place, fault, text, peak_bytes)
    return End(EndKind.CRASHED, text)


def _how_it_went(attempt: Attempt) -> str:
    if attempt.signal is not None:
        try:
            name = signals.Signals(attempt.signal).name
        except ValueError:
            name = "unknown"
        return f"killed by signal {attempt.signal} ({name})"
    if attempt.exit_code is None:
        return "the trial's process went away without an outcome"
    return f"exited with code {attempt.exit_code} without an outcome"


def _describe(outcome: Outcome) -> str:
    name = outcome.type_name.removeprefix("builtins.")
    if outcome.exit_code is not None:
        return f"{name}: exit code {outcome.exit_code}"
    return f"{name}: {outcome.text}" if name else outcome.text
