"""From Optuna's trials to what they say of memory. Pure."""

from __future__ import annotations

from typing import Any

from optuna.trial import FrozenTrial, TrialState

from vrampool.memory.explaining import TrialMemory
from vrampool.memory.peaks import PastPeak
from vrampool.messages import AttemptFacts, EndKind, Verdict
from vrampool.storage.marks import PLAN, REQUEST, attempt_of, mark_of
from vrampool.storage.planned import load_plan

_WELL = frozenset({EndKind.COMPLETE, EndKind.PRUNED})
#: Where nothing is imported ahead, the time of that is next to none.
_IMPORTS_S = 0.005
_OWN_FAULT = frozenset({Verdict.CULPRIT, Verdict.UNKNOWN})


def past_peak(trial: FrozenTrial) -> PastPeak | None:
    """Return what a trial's attempt teaches of memory; None: nothing was measured."""
    facts = attempt_of(trial)
    if facts is None or not facts.peak_bytes:
        return None
    well = facts.end in _WELL
    guilty = facts.end in (EndKind.OOM, EndKind.INFEASIBLE) and facts.verdict in _OWN_FAULT
    return PastPeak(
        facts.peak_bytes,
        censored=not well or facts.num_alloc_retries > 0,
        params=dict(trial.params) if well else planned_params(trial),
        overhead_bytes=facts.overhead_bytes,
        device=facts.device_name or facts.device,
        asked_bytes=_asked(facts) if guilty else 0,
        finished=well,
    )


def planned_params(trial: FrozenTrial) -> dict[str, Any]:
    """Return a trial's parameters as far as they are decided: planned, chosen by the user, or asked for already."""
    planned, _ = load_plan(trial.user_attrs.get(PLAN))
    return {**planned, **trial.system_attrs.get("fixed_params", {}), **trial.params}


def trial_memory(trial: FrozenTrial) -> TrialMemory:
    """Return the memory of a trial's attempt, for `vrampool.memory.explaining`."""
    raw = trial.user_attrs.get(REQUEST)
    request = raw if isinstance(raw, dict) else {}
    facts = attempt_of(trial)
    mark = mark_of(trial)
    past = past_peak(trial)
    return TrialMemory(
        number=trial.number,
        state=trial.state.name,
        params=planned_params(trial),
        end=None if facts is None else facts.end,
        attempt=1 if mark is None else mark.attempt,
        request_bytes=request.get("bytes"),
        request_reason=str(request.get("reason", "")),
        predicted_bytes=request.get("predicted"),
        lease_bytes=(facts.lease_bytes or None) if facts is not None else None,
        reserved_bytes=None if facts is None else _reserved(facts),
        peak_bytes=None if facts is None else facts.peak_bytes,
        at_least=past is not None and past.censored,
        overhead_bytes=None if facts is None else facts.overhead_bytes,
        over_gib=None if facts is None else facts.over_gib,
        run_s=None if facts is None else facts.run_s,
        refused=len(request.get("refused") or ()),
        ahead=facts.forked or (facts.import_s or 0.0) >= _IMPORTS_S
        if facts is not None and facts.device == "cpu"
        else None,
        past=past if trial.state != TrialState.RUNNING else None,
    )


def _reserved(facts: AttemptFacts) -> int | None:
    """Return what was kept from others for an attempt, at its end.

    What it was lent beyond its request is called back when another trial wants it, and is nobody's loss; what it held
    is kept in any case. One that asked for a device of its own has what its lease came down to.
    """
    lease_bytes = facts.lease_at_end_bytes or facts.lease_bytes
    if not lease_bytes or not facts.request_bytes:
        return lease_bytes or None
    return max(min(lease_bytes, facts.request_bytes), facts.peak_bytes or 0)


def _asked(facts: AttemptFacts) -> int:
    """Return by how much it fell short: what it asked for, or what its lease was above its peak, if that is more."""
    return max(facts.asked_bytes or 0, (facts.lease_at_end_bytes or facts.lease_bytes) - (facts.peak_bytes or 0), 0)
