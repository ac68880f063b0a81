"""From how a child ended to what is told: pure, no I/O. One function, `conclude`; `endings` decides what it was."""

from __future__ import annotations

from dataclasses import dataclass

from vrampool.messages import AttemptFacts, EndKind, Outcome
from vrampool.units import GIB
from vrampool_worker.attempt_story import tell_story
from vrampool_worker.attempts import Attempt
from vrampool_worker.endings import End, Place, decide
from vrampool_worker.tax import tax_of

#: What a user reads of an error; the whole of it is in the log of the attempt.
TEXT_LIMIT = 4_000
TRACEBACK_LIMIT = 16_000


@dataclass(frozen=True)
class Conclusion:
    """What is told of an attempt."""

    facts: AttemptFacts
    values: list[float] | None = None  #: set when the end is COMPLETE
    by_objective: bool = False  #: the objective itself ended so: samplers are told by `study.tell`

    @property
    def infeasible(self) -> bool:
        """True when it fits no device: told PRUNED without a value."""
        return self.facts.end == EndKind.INFEASIBLE

    @property
    def state(self) -> str:
        """Name of the Optuna state that is told."""
        if self.infeasible or self.facts.end == EndKind.PRUNED:
            return "PRUNED"
        return "COMPLETE" if self.facts.end == EndKind.COMPLETE else "FAIL"


def conclude(attempt: Attempt, place: Place) -> Conclusion:
    """Decide how an attempt ended. Called when its whole tree of processes is gone."""
    peak, source = _peak(attempt, place)
    end = decide(attempt, place, peak)
    outcome = attempt.outcome or Outcome(kind="")
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
        over_gib=_over_gib(end, place, peak),
        max_torch_reserved_bytes=attempt.sample.max_torch_reserved_bytes,
        max_allocated_bytes=attempt.sample.max_allocated_bytes,
        shrunk_from_bytes=attempt.shrunk_from_bytes,
        num_ooms=attempt.sample.num_ooms,
        num_ooms_handled=attempt.sample.num_ooms_handled,
        num_alloc_retries=attempt.sample.num_alloc_retries,
        device_free_bytes=place.free_bytes if attempt.scene is None else attempt.scene.free_bytes,
        device_used_before_bytes=attempt.used_before_bytes,
        budget_bytes=place.budget_bytes,
        verdict=end.verdict,
        asked_bytes=end.asked_bytes,
        held_bytes=end.held_bytes,
        type_name=outcome.type_name,
        mro=outcome.mro,
        text=_shorten(end.text, TEXT_LIMIT),
        story=tell_story(attempt, place, peak, end.asked_bytes, end.judgement),
        traceback=_shorten(outcome.traceback, TRACEBACK_LIMIT),
        exit_code=attempt.exit_code if outcome.exit_code is None else outcome.exit_code,
        signal=attempt.signal,
        log=attempt.log_path,
        wait_s=attempt.wait_s,
        **tax_of(attempt),
        spare=attempt.spare,
        mps=attempt.mps or (False if attempt.mps_reason else None),
        mps_reason=attempt.mps_reason,
        steps=attempt.steps,
        hints=tuple(attempt.hints[:8]),
    )
    return Conclusion(facts=facts, values=end.values, by_objective=end.by_objective)


def _over_gib(end: End, place: Place, peak: int | None) -> float | None:
    """Return by how much a trial was over the largest budget of the pool; None where its need is not known."""
    if end.infeasible:
        return max((peak or place.budget_bytes) - place.largest_budget_bytes, 1) / GIB
    if peak is None or end.kind not in (EndKind.COMPLETE, EndKind.PRUNED):
        return None
    # It fitted, whatever a reading in a bad moment says: a sampler must not take its value for nothing.
    return min((peak - place.largest_budget_bytes) / GIB, 0.0)


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


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - limit} characters left out ...\n{text[-half:]}"
