"""What a trial costs beside its own run: process, imports, context, hand-over, exit. Pure."""

from __future__ import annotations

from typing import Any

from vrampool_worker.attempts import Attempt


def tax_of(attempt: Attempt) -> dict[str, Any]:
    """Return the fields of an attempt's facts that say so, in seconds; None where it did not come so far."""
    child = attempt.child
    ready_s = child.ready_at_s if child is not None else None
    handed_s, started_s = attempt.handed_at_s, attempt.started_at_s
    spawn_s = handover_s = run_s = exit_s = None
    if handed_s is not None and started_s is not None:
        begins_s = handed_s if attempt.spare or ready_s is None else max(handed_s, ready_s)
        spawn_s, handover_s = round(begins_s - handed_s, 4), round(started_s - begins_s, 4)
    if attempt.ended_at_s is not None:
        if started_s is not None:
            run_s = round(attempt.ended_at_s - started_s, 3)
        if attempt.outcome_at_s is not None:
            exit_s = round(attempt.ended_at_s - attempt.outcome_at_s, 4)
    return {
        "spawn_s": spawn_s,
        "import_s": round(child.preload_s, 4) if ready_s is not None and child is not None else None,
        "handover_s": handover_s,
        "context_s": attempt.sample.context_s,
        "run_s": run_s,
        "exit_s": exit_s,
        "forked": child is not None and child.forked,
    }
