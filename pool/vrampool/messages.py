"""The frozen JSON messages between processes.

Between coordinator and worker travels a `Ticket` (ids and the request, in the RQ job); everything else about a
trial is read from the storage. Between a worker and its child travel the frames listed in `ChildFrame`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from vrampool.errors import MessageError

#: Raised by one when a message changes its meaning. A worker refuses messages that are newer than its own.
WIRE_VERSION = 1
#: The one entry point a job may name. Workers compare it and never import by it.
ENTRY_POINT = "vrampool_worker.child.run_trial"
#: The dotted name of the process that runs a trial, started as ``python -m``.
CHILD_MODULE = "vrampool_worker.child"


class ChildFrame(StrEnum):
    """Value of the key ``t`` of each frame between worker and child."""

    IMPORTING = "importing"  #: child -> worker: it begins to import a module ahead of its trial. {module, pid}
    READY = "ready"  #: child -> worker: imports done, waits for its trial. {pid, preload_s}
    START = "start"  #: worker -> child: the one trial (`ChildStart`); a bundle follows as a raw frame
    STARTED = "started"  #: child -> worker: cap set and read back, user code begins. {cap_bytes, cap_source}
    CALL = "call"  #: child -> worker: a call of the proxy trial. {id, name, args}
    REPLY = "reply"  #: worker -> child: its answer. {id, ok, value | error}
    SAMPLE = "sample"  #: child -> worker: memory as the child sees it (`MemorySample` fields)
    STEP = "step"  #: child -> worker: optimizer steps counted so far. {steps}
    HINT = "hint"  #: child -> worker: one sentence of advice for the study's report. {text}
    RECAP = "recap"  #: worker -> child: shrink or raise the cap. {cap_bytes}
    RECAPPED = "recapped"  #: child -> worker: its answer. {asked_bytes, cap_bytes, freed_bytes, held_bytes, enforced}
    GROW = "grow"  #: child -> worker: it holds nearly all of its cap and asks for more. {held_bytes, cap_bytes}
    STAY = "stay"  #: worker -> child: no, its cap stays as it is. {reason}
    OUTCOME = "outcome"  #: child -> worker: how the objective ended (`Outcome`); the last frame


class OutcomeKind(StrEnum):
    """How an objective ended, as its child tells it."""

    VALUE = "value"  #: returned; `values` holds what it returned
    PRUNED = "pruned"  #: raised optuna.TrialPruned
    FAILED = "failed"  #: raised anything else, or returned what is no value
    OOM = "oom"  #: raised an out-of-memory error; `memory` holds asked, allowed, free where the text has them
    STOPPED = "stopped"  #: was asked to end (timeout, cancel, shutdown) and did


class EndKind(StrEnum):
    """How an attempt ended, as the worker tells it. Kept in the attempt's facts; retries are decided on it."""

    COMPLETE = "complete"  #: told COMPLETE
    PRUNED = "pruned"  #: told PRUNED
    FAILED = "failed"  #: the objective's own fault: raised, wrong value, exited. Never retried
    OOM = "oom"  #: out of memory; `verdict` says whose fault
    CRASHED = "crashed"  #: the child died by a signal or without an outcome. Infra retry
    TIMEOUT = "timeout"  #: over `trial_timeout_s`. Retried only if the submission says so
    PREEMPTED = "preempted"  #: handed back by a worker that shuts down. Retried at no charge
    CANCELLED = "cancelled"  #: ended on request of the user. Never retried
    DEVICE_LOST = "device_lost"  #: the driver lost the card. Infra retry
    REFUSED = "refused"  #: the worker could not start it (message, objective, environment). Not retried
    LOST = "lost"  #: its worker went away. Infra retry
    INFEASIBLE = "infeasible"  #: fits no device of the pool, measured. Told PRUNED with a constraint


class Verdict(StrEnum):
    """Whose fault an out-of-memory error was."""

    CULPRIT = "culprit"  #: the trial needed more than its lease: retried with a larger one
    VICTIM = "victim"  #: somebody else took the memory: retried at no charge
    UNKNOWN = "unknown"  #: the numbers do not tell; treated as culprit
    HOST = "host"  #: host memory on a GPU device; the request is not raised
    SHRINK = "shrink"  #: caused by our own shrinking of the lease: retried at no charge, not shrunk again
    SWALLOWED = "swallowed"  #: the objective caught it and went on: treated as culprit, for its result is another one


def _from_json(cls: type[Any], raw: Any) -> Any:
    """Build a frozen message from parsed JSON; unknown keys are dropped, so that newer senders may add some."""
    if not isinstance(raw, dict):
        raise MessageError(f"a {cls.__name__} must be an object, not {type(raw).__name__}")
    names = {item.name for item in dataclasses.fields(cls)}
    try:
        return cls(**{key: value for key, value in raw.items() if key in names})
    except TypeError as error:
        raise MessageError(f"a {cls.__name__} lacks a field: {error}") from None


class _Message:
    def to_json(self) -> dict[str, Any]:
        """Return the message as a dict that `json.dumps` takes."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, raw: Any) -> Self:
        """Read the message back.

        Raises:
            MessageError: a field is missing, or `raw` is no object.
        """
        return _from_json(cls, raw)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ObjectiveRef(_Message):
    """Where a worker's child finds the objective."""

    kind: str  #: "import" or "bundle"
    target: str  #: "package.module:name" or "/abs/path/FILE.py:name"; for a bundle the function's name, for people
    source_sha256: str | None = None  #: import: hash of the source file; a worker with another one refuses
    bundle_sha256: str | None = None  #: bundle: its key in the storage's table of bundles
    python: str | None = None  #: bundle: "3.11"; another minor version cannot open it
    workdir: str | None = None  #: working directory of the child; None: a scratch directory of the trial
    sys_path: tuple[str, ...] = ()  #: put in front of sys.path before the import

    def __post_init__(self) -> None:
        object.__setattr__(self, "sys_path", tuple(self.sys_path))


@dataclass(frozen=True)
class Ticket(_Message):
    """Payload of one RQ job: which trial. Signed and bound to the job's id by `vrampool.signing`."""

    pool: str
    study_name: str
    submission_id: str
    number: int
    trial_id: int
    vram_bytes: int | None  #: None: exclusive
    wire: int = WIRE_VERSION


@dataclass(frozen=True)
class ChildStart(_Message):
    """All a child needs for its one trial."""

    objective: ObjectiveRef
    trial: dict[
        str, Any
    ]  #: snapshot for the proxy trial: number, user_attrs, datetime_start, fixed_params, study {...}
    has_bundle: bool = False  #: a raw frame with the bundle follows
    bundle_signature: str | None = None
    env: dict[str, str] = field(default_factory=dict)  #: the submission's env=, set before any user code is imported
    device_env: dict[str, str] = field(default_factory=dict)  #: of the worker's, set after env=, before any use of CUDA
    device: str = "cpu"  #: "cpu" or "cuda"
    lease_bytes: int = 0
    cap_bytes: int | None = None  #: cuda: what torch's allocator may hold; cpu: RLIMIT_DATA; None: no cap
    ceiling_bytes: int | None = None  #: cpu: what the cap may ever be raised to; None: it stays as it is
    total_bytes: int = 0  #: of the device, the cap's fraction is taken of it
    seed: int = 0  #: for random, numpy and torch, from study and trial number
    sample_interval_s: float = 0.5
    slots: int = 1  #: trials that may run at once on this host
    look_for: tuple[str, ...] = ()  #: modules of which the outcome says whether they were imported

    @classmethod
    def from_json(cls, raw: Any) -> Self:
        message: Self = _from_json(cls, raw)
        return dataclasses.replace(message, objective=ObjectiveRef.from_json(message.objective))


@dataclass(frozen=True)
class MemorySample(_Message):
    """Memory of a trial as its own process sees it. Bytes; None where it cannot be known."""

    allocated_bytes: int | None = None
    torch_reserved_bytes: int | None = None
    max_torch_reserved_bytes: int | None = None
    max_allocated_bytes: int | None = None
    num_ooms: int = 0  #: of the allocator, those among them that a library below Python met and dealt with
    num_ooms_raised: int | None = None  #: of num_ooms, those that reached Python; None: that cannot be told
    num_alloc_retries: int = 0
    cap_bytes: int | None = None
    cuda_initialized: bool = False
    context_s: float | None = None  #: what beginning with the GPU took
    num_ooms_handled: int = 0  #: of num_ooms, those that a helper of ours caught on purpose
    #: of the last out-of-memory error that was not caught on purpose, as the allocator told it
    oom_asked_bytes: int | None = None
    oom_allowed_bytes: int | None = None
    oom_free_bytes: int | None = None
    oom_reserved_bytes: int | None = None


@dataclass(frozen=True)
class Outcome(_Message):
    """How the objective ended. Exceptions travel as text only."""

    kind: str  #: an `OutcomeKind`
    values: list[float] | None = None
    type_name: str = ""  #: qualified name of the exception's class
    mro: tuple[str, ...] = ()  #: qualified names of its bases, for `catch`
    text: str = ""
    traceback: str = ""
    memory: dict[str, Any] = field(
        default_factory=dict
    )  #: oom: {asked_bytes, allowed_bytes, free_bytes, device: cuda|host}
    sample: dict[str, Any] = field(default_factory=dict)  #: the last `MemorySample`
    exit_code: int | None = None  #: SystemExit's code, when that was raised
    loading: bool = False  #: failed before the objective ran: it could not be imported or opened
    imported: tuple[str, ...] = ()  #: of `ChildStart.look_for`, what its process has imported

    def __post_init__(self) -> None:
        object.__setattr__(self, "mro", tuple(self.mro))
        object.__setattr__(self, "imported", tuple(self.imported))


@dataclass(frozen=True)
class SubmissionSpec(_Message):
    """What one call of submit asked for. Stored signed beside the study; read by coordinator and workers."""

    submission_id: str
    study_name: str
    objective: ObjectiveRef
    n_trials: int | None = None  #: root trials this submission adds; None: until timeout, stop, or the sampler's end
    total: int | None = None  #: instead of n_trials: root trials the study shall have in all
    timeout_s: float | None = None
    trial_timeout_s: float | None = None
    catch: tuple[str, ...] | None = None  #: qualified class names; None: every exception, the study goes on
    vram: Any = "auto"  #: "auto" or bytes
    max_concurrent_trials: int | None = None  #: at once, over all devices
    max_trials_per_device: int | None = None  #: at once on each device
    priority: int = 0
    env: dict[str, str] = field(default_factory=dict)
    sampler: str | None = None  #: spec made by `vrampool.objectives.samplers`; None: Optuna's default
    pruner: str | None = None
    points: tuple[dict[str, Any], ...] = ()
    skip_if_exists: bool = False
    retry_timeouts: bool = False
    max_infra_retries: int = 2
    max_victim_retries: int = 5
    oom: str = "auto"  #: "auto" or "user": leave what the objective swallows to the objective
    seed: int = 0  #: start of the seeds given to trials
    created_at: float = 0.0  #: seconds since the epoch
    submitter: str = ""  #: host and pid, for people
    wire: int = WIRE_VERSION

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", tuple(self.points))
        if self.catch is not None:
            object.__setattr__(self, "catch", tuple(self.catch))

    @classmethod
    def from_json(cls, raw: Any) -> Self:
        message: Self = _from_json(cls, raw)
        return dataclasses.replace(message, objective=ObjectiveRef.from_json(message.objective))


@dataclass(frozen=True)
class AttemptFacts(_Message):
    """All facts of one attempt, kept as one JSON attribute on its trial. Bytes; None where unknown."""

    end: str  #: an `EndKind`
    worker: str = ""
    host: str = ""
    device: str = ""  #: the device's stable id (GPU-..., cpu)
    device_name: str = ""
    pid: int | None = None
    request_bytes: int | None = None  #: None: exclusive
    request_reason: str = ""
    lease_bytes: int = 0  #: the largest it had
    lease_at_end_bytes: int = 0
    cap_bytes: int | None = None
    overhead_bytes: int | None = None
    peak_bytes: int | None = None  #: what the device saw of it: reserved peak + overhead, or its tree's PSS
    peak_source: str = ""  #: "child", "nvml", "pss", "device"
    over_gib: float | None = None  #: GiB by which the peak is over the pool's largest budget; negative: it fitted
    max_torch_reserved_bytes: int | None = None
    max_allocated_bytes: int | None = None
    shrunk_from_bytes: int | None = None  #: its lease before it was made smaller while the trial ran; None: it was not
    num_ooms: int = 0  #: out-of-memory errors of the allocator, whoever caught them
    num_ooms_handled: int = 0  #: of them, those that a helper of ours caught on purpose
    num_alloc_retries: int = 0
    device_free_bytes: int | None = None  #: of the device, when the objective ended
    device_used_before_bytes: int | None = None
    budget_bytes: int | None = None  #: of the device, when the attempt ended
    verdict: str | None = None  #: a `Verdict`
    asked_bytes: int | None = None  #: out of memory: the allocation that failed,
    held_bytes: int | None = None  #: and what the trial held then, overhead included
    type_name: str = ""
    mro: tuple[str, ...] = ()
    text: str = ""  #: what went wrong, in one or two sentences
    story: str = ""  #: one paragraph for people: what it asked for, got and held, and who else held the device
    traceback: str = ""
    exit_code: int | None = None
    signal: int | None = None
    log: str | None = None  #: path on `host` of the attempt's stdout and stderr
    wait_s: float | None = None  #: enqueue to start
    spawn_s: float | None = None  #: what it waited for its process and imports: 0 where a spare was waiting
    import_s: float | None = None  #: what the imports took, ahead of the trial or not; about 0 in a forked process
    handover_s: float | None = None  #: hand-over to the objective's first line
    context_s: float | None = None  #: of `run_s`, what torch took to begin with the GPU; None: it did not
    exit_s: float | None = None  #: from the objective's end until its processes were gone; part of `run_s`
    forked: bool = False  #: its process was forked from a server that had imported everything
    run_s: float | None = None
    spare: bool = False  #: ran in a spare that was waiting
    mps: bool | None = None  #: ran as a client of MPS; None: on a device without it
    mps_reason: str = ""  #: why it ran outside MPS
    steps: int = 0
    hints: tuple[str, ...] = ()  #: advice the trial's process gave, a sentence each

    def __post_init__(self) -> None:
        object.__setattr__(self, "mro", tuple(self.mro))
        object.__setattr__(self, "hints", tuple(self.hints))
