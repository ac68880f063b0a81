"""Tests of RQ's suite that do not hold for our worker class: at most fifteen, each with its reason."""

from __future__ import annotations

LIMIT = 15
REASONS: dict[str, str] = {
    "test_worker.TestWorker.test_get_heartbeat_ttl": (
        "RQ renews an execution every 30 s and lets it live for 90 s; ours is renewed with every beat, so that a dead "
        "worker is noticed in seconds: its life follows from `lease_ttl_s`, and is 40 s by default."
    ),
    "test_executions.TestRegistry.test_registry_cleanup": (
        "The same: the test expects an execution to be there 100 s later, within RQ's 90 s and some margin; "
        "ours has ended by then."
    ),
}
