"""Optuna's storage made right for a pool: opening it, and every write that changes whose a trial is."""

from vrampool.storage.catalog import FINAL_STATES, Catalog, SubmissionRow, SubmissionState
from vrampool.storage.claims import (
    adopt_waiting,
    cancel_waiting,
    claim,
    create_planned,
    create_retry,
    fail_lost,
    fail_running,
    is_fenced,
    prune_infeasible,
    record_facts,
    record_plan,
)
from vrampool.storage.faults import TransientStorageError, is_transient, keep_trying
from vrampool.storage.known_trials import KnownTrials
from vrampool.storage.marks import (
    ATTEMPT,
    CANCELLED,
    CLAIM,
    LOST,
    MARK,
    OVER_GIB,
    PLAN,
    REQUEST,
    Mark,
    attempt_of,
    cancelled_reason,
    claimed_by,
    lost_reason,
    mark_of,
    requested_bytes,
    root_of,
)
from vrampool.storage.opening import open_storage, storage_of, url_of
from vrampool.storage.planned import Plan, PlannedTrial, dump_plan, load_plan
from vrampool.storage.pool_storage import PoolStorage
from vrampool.storage.queue_view import QueueView
from vrampool.storage.worker_view import WorkerView

__all__ = [
    "ATTEMPT",
    "CANCELLED",
    "CLAIM",
    "FINAL_STATES",
    "LOST",
    "MARK",
    "OVER_GIB",
    "PLAN",
    "REQUEST",
    "Catalog",
    "KnownTrials",
    "Mark",
    "Plan",
    "PlannedTrial",
    "PoolStorage",
    "QueueView",
    "SubmissionRow",
    "SubmissionState",
    "TransientStorageError",
    "WorkerView",
    "adopt_waiting",
    "attempt_of",
    "cancel_waiting",
    "cancelled_reason",
    "claim",
    "claimed_by",
    "create_planned",
    "create_retry",
    "dump_plan",
    "fail_lost",
    "fail_running",
    "is_fenced",
    "is_transient",
    "keep_trying",
    "load_plan",
    "lost_reason",
    "mark_of",
    "open_storage",
    "prune_infeasible",
    "record_facts",
    "record_plan",
    "requested_bytes",
    "root_of",
    "storage_of",
    "url_of",
]
