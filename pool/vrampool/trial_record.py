"""One trial as a script reads it: what `--json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna.trial import FrozenTrial

from vrampool.storage import attempt_of, mark_of


def trial_record(trial: FrozenTrial, attempts: Sequence[FrozenTrial] = ()) -> dict[str, Any]:
    """Return what `--json` prints of one trial: plain JSON types, bytes and seconds since the epoch."""
    facts = attempt_of(trial)
    mark = mark_of(trial)
    record: dict[str, Any] = {
        "number": trial.number,
        "state": trial.state.name,
        "value": trial.values[0] if trial.values and len(trial.values) == 1 else trial.values,
        "params": trial.params,
        "attempt": mark.attempt if mark is not None else 1,
        "root": mark.root if mark is not None and mark.root is not None else trial.number,
        "start": trial.datetime_start.timestamp() if trial.datetime_start else None,
        "end": trial.datetime_complete.timestamp() if trial.datetime_complete else None,
        "request_bytes": None,
        "lease_bytes": None,
        "peak_bytes": None,
        "device": None,
        "pid": None,
        "reason": trial.user_attrs.get("vrampool:lost") or trial.user_attrs.get("vrampool:cancelled") or "",
    }
    if facts is not None:
        record |= {
            "request_bytes": facts.request_bytes,
            "lease_bytes": facts.lease_bytes,
            "peak_bytes": facts.peak_bytes,
            "device": facts.device,
            "pid": facts.pid,
            "how": facts.end,
            "verdict": facts.verdict,
            "reason": facts.text,
            "log": facts.log,
            "tax": {
                name: getattr(facts, name)
                for name in ("wait_s", "spawn_s", "import_s", "handover_s", "context_s", "exit_s", "spare", "forked")
            },
        }
    return record
