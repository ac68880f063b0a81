"""From how a child ended to what is told: pure, no I/O. One function, `conclude`, and its cases."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass

from vrampool.memory.verdicts import MemoryFault, VerdictNumbers, judge
from vrampool.messages import AttemptFacts, EndKind, Outcome, OutcomeKind, Verdict
from vrampool.units import format_bytes
from vrampool_worker.attempts import Attempt

#: What a user reads of an error; the whole of it is in the log of the attempt.
TEXT_LIMIT = 4_000
TRACEBACK_LIMIT = 16_000


@dataclass(frozen=True)
class Conclusion:
    """What is told of an attempt."""

    facts: AttemptFacts
    values: list[float] | None = None  #: set when the end is COMPLETE
    over_gib: float | None = None  #: set when it fits no device: told as a constraint, PRUNED without a value
    by_objective: bool = False  #: the objective itself ended so: samplers are told by `study.tell`

    @property
    def state(self) -> str:
        """Name of the Optuna state that is told."""
        if self.over_gib is not None or self.facts.end == EndKind.PRUNED:
            return "PRUNED"
        return "COMPLETE" if self.facts.end == EndKind.COMPLETE else "FAIL"


@dataclass(frozen=True)
class Place:
    """Where an attempt ran, and what that place can hold."""

    worker: str
    host: str
    device: str
    device_name: str
    device_kind: str  #: "cuda" or "cpu"
    budget_bytes: int
    largest_budget_bytes: int  #: of any device the pool saw in 24 h
    overhead_bytes: int | None
    free_bytes: int | None  #: of the device, at its last reading


@dataclass(frozen=True)
class _End:
    kind: EndKind
    text: str = ""
    verdict: Verdict | None = None
    values: list[float] | None = None
    by_objective: bool = False
    infeasible: bool = False


def conclude(attempt: Attempt, place: Place) -> Conclusion:
    """Decide how an attempt ended. Called when its whole tree of processes is gone."""
    peak, source = _peak(attempt, place)
    end = _end(attempt, place, peak)
    outcome = attempt.outcome or Outcome(kind="")
    run_s = None
    if attempt.started_at_s is not None and attempt.ended_at_s is not None:
        run_s = round(attempt.ended_at_s - attempt.started_at_s, 3)
    handover_s = None
    if attempt.started_at_s is not None and attempt.handed_at_s is not None:
        handover_s = round(attempt.started_at_s - attempt.handed_at_s, 4)
    facts = AttemptFacts(
        end=EndKind.INFEASIBLE if end.infeasible else end.kind,
        worker=place.worker,
        host=place.host,
        device=place.device,
        device_name=place.device_name,
        pid=attempt.child.pid if attempt.child is not None else None,
        request_bytes=attempt.ticket.vram_bytes,
        request_reason=attempt.request_reason,
        lease_bytes=attempt.lease_bytes,
        lease_at_end_bytes=attempt.lease_at_end_bytes,
        cap_bytes=attempt.cap_bytes,
        overhead_bytes=place.overhead_bytes,
        peak_bytes=peak,
        peak_source=source,
        max_torch_reserved_bytes=attempt.sample.max_torch_reserved_bytes,
        max_allocated_bytes=attempt.sample.max_allocated_bytes,
        num_ooms=attempt.sample.num_ooms,
        num_alloc_retries=attempt.sample.num_alloc_retries,
        device_used_before_bytes=attempt.used_before_bytes,
        budget_bytes=place.budget_bytes,
        verdict=end.verdict,
        asked_bytes=outcome.memory.get("asked_bytes"),
        type_name=outcome.type_name,
        mro=outcome.mro,
        text=_shorten(end.text, TEXT_LIMIT),
        traceback=_shorten(outcome.traceback, TRACEBACK_LIMIT),
        exit_code=attempt.exit_code if outcome.exit_code is None else outcome.exit_code,
        signal=attempt.signal,
        log=attempt.log_path,
        wait_s=attempt.wait_s,
        spawn_s=attempt.spawn_s,
        handover_s=handover_s,
        run_s=run_s,
        spare=attempt.spare,
        steps=attempt.steps,
        hints=tuple(attempt.hints[:8]),
    )
    over = None
    if end.infeasible:
        over = max((peak or place.budget_bytes) - place.largest_budget_bytes, 1) / 1024**3
    return Conclusion(facts=facts, values=end.values, over_gib=over, by_objective=end.by_objective)


def _peak(attempt: Attempt, place: Place) -> tuple[int | None, str]:
    """Return the most the attempt held on its device, and who says so."""
    if place.device_kind == "cuda":
        reserved = attempt.sample.max_torch_reserved_bytes
        if reserved:
            return reserved + (place.overhead_bytes or 0), "child"
        return (attempt.measured_peak_bytes or None), attempt.measured_source or "device"
    # A child that ended between two readings was seen by nobody; the kernel's own high-water mark then is all there is.
    if attempt.measured_peak_bytes:
        return attempt.measured_peak_bytes, attempt.measured_source or "pss"
    return attempt.max_rss_bytes, "rusage"


def _end(attempt: Attempt, place: Place, peak: int | None) -> _End:
    outcome = attempt.outcome
    ending = attempt.ending
    finished = outcome is not None and outcome.kind in (OutcomeKind.VALUE, OutcomeKind.PRUNED)
    if ending is not None and ending.kind is EndKind.OOM:
        return _oom_end(attempt, place, ending.text, None, peak)
    if ending is not None and (ending.kind is EndKind.TIMEOUT or not finished):
        return _End(ending.kind, ending.text)
    if outcome is None:
        return _crashed(attempt, place)
    if outcome.kind == OutcomeKind.VALUE:
        return _End(EndKind.COMPLETE, values=outcome.values, by_objective=True)
    if outcome.kind == OutcomeKind.PRUNED:
        return _End(EndKind.PRUNED, outcome.text, by_objective=True)
    if outcome.kind == OutcomeKind.OOM:
        return _oom_end(attempt, place, outcome.text, outcome, peak)
    return _End(EndKind.FAILED, _describe(outcome), by_objective=True)


def _oom_end(attempt: Attempt, place: Place, text: str, outcome: Outcome | None, peak: int | None) -> _End:
    memory = outcome.memory if outcome is not None else {}
    fault = MemoryFault.from_dict(memory)
    numbers = VerdictNumbers(
        lease_bytes=attempt.lease_bytes,
        used_bytes=peak,
        device_free_bytes=place.free_bytes,
        on_cpu=place.device_kind == "cpu",
    )
    judgement = judge(fault, numbers)
    verdict = judgement.verdict
    guilty = verdict in (Verdict.CULPRIT, Verdict.UNKNOWN)
    # An exclusive lease is all that was free of the device, which strangers may make less than its budget.
    whole = attempt.lease_bytes >= place.largest_budget_bytes or (
        attempt.ticket.vram_bytes is None and attempt.exclusive and place.budget_bytes >= place.largest_budget_bytes
    )
    words = f"out of memory: {judgement.reason}"
    if guilty and whole:
        words = f"out of memory at the full card ({format_bytes(place.largest_budget_bytes)}): {judgement.reason}"
    return _End(EndKind.OOM, f"{words}. {text}".strip(), verdict, infeasible=guilty and whole)


def _crashed(attempt: Attempt, place: Place) -> _End:
    if attempt.signal is not None:
        try:
            name = signals.Signals(attempt.signal).name
        except ValueError:
            name = "unknown"
        return _End(EndKind.CRASHED, f"killed by signal {attempt.signal} ({name})")
    if attempt.exit_code is None:
        return _End(EndKind.CRASHED, "the trial's process went away without an outcome")
    return _End(EndKind.CRASHED, f"exited with code {attempt.exit_code} without an outcome")


def _describe(outcome: Outcome) -> str:
    name = outcome.type_name.removeprefix("builtins.")
    if outcome.exit_code is not None:
        return f"{name}: exit code {outcome.exit_code}"
    return f"{name}: {outcome.text}" if name else outcome.text


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - limit} characters left out ...\n{text[-half:]}"
