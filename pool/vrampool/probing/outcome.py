"""What one trial of a probe showed. Reads Optuna's trial; else pure."""

from __future__ import annotations

from optuna.trial import FrozenTrial

from vrampool.measured import planned_params
from vrampool.messages import AttemptFacts, EndKind
from vrampool.probing.corners import Run
from vrampool.storage import attempt_of

#: Why the probe ended a trial.
STEADY = "its peak was stable"
LATE = "it took too long"


def run_of(trial: FrozenTrial, corner: str, reason: str) -> Run:
    """Return what a trial's attempt showed.

    Args:
        trial: It has ended.
        corner: What it was for, in words.
        reason: Why the probe ended it; empty: it did not.
    """
    facts = attempt_of(trial) or AttemptFacts(end="")
    peak_bytes, note = facts.peak_bytes, reason
    if facts.end in (EndKind.COMPLETE, EndKind.PRUNED):
        end = "not whole" if facts.num_alloc_retries else "fits"
    elif facts.end in (EndKind.OOM, EndKind.INFEASIBLE):
        end = "does not fit"
        peak_bytes = (peak_bytes or 0) + (facts.asked_bytes or 0) or None
    elif reason == STEADY and peak_bytes:
        # Stable after its reports it is as good as whole; without a report nobody knows what an evaluation takes.
        end = "fits" if trial.intermediate_values else "not whole"
    elif facts.end in (EndKind.CANCELLED, EndKind.TIMEOUT) and peak_bytes:
        end, note = "not whole", reason or LATE
    else:
        end, note = "failed", facts.text or facts.end or "nothing is known of its end"
    params = trial.params if end == "fits" else planned_params(trial)
    return Run(
        trial.number,
        corner,
        dict(params),
        end,
        peak_bytes,
        overhead_bytes=facts.overhead_bytes,
        device=facts.device_name or facts.device,
        note=note,
        run_s=facts.run_s,
        reports=len(trial.intermediate_values),
        steps=facts.steps,
    )
