"""One attempt: a trial in the hands of this worker, from the take to the released lease."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from vrampool.memory.declared import read_vram
from vrampool.messages import EndKind, MemorySample, Outcome, SubmissionSpec, Ticket

if TYPE_CHECKING:
    from vrampool_worker.children.child import Child
    from vrampool_worker.gap_watch import GapWatch
    from vrampool_worker.kernel_kills import KernelKills
    from vrampool_worker.settlement import Conclusion
    from vrampool_worker.trial_server import TrialServer


class Stage(StrEnum):
    """Where an attempt is. It only moves forward."""

    OPENING = "opening"  #: lease granted; the storage is asked for the claim
    AWAITING = "awaiting"  #: claimed; there will be a process for it in a moment
    RUNNING = "running"  #: handed to a child
    ENDED = "ended"  #: the child and all below it are gone; the result is being told, the memory watched
    TOLD = "told"  #: the storage has the result
    CLOSED = "closed"  #: told, lease released, RQ's state cleaned up


#: Stages of a trial that is on its device, from its claim to the end of its process.
UNDER_WAY = (Stage.OPENING, Stage.AWAITING, Stage.RUNNING)


@dataclass(frozen=True)
class Ending:
    """Why this worker ends a child, decided before the child is gone."""

    kind: EndKind
    text: str


@dataclass(frozen=True)
class Move:
    """A smaller lease that a child was asked to make do with, and has not confirmed yet."""

    to_bytes: int
    cap_bytes: int  #: what the child was told
    asked_at_s: float
    alone: bool = False  #: it ends the trial's exclusive use of the device


@dataclass(frozen=True)
class Scene:
    """The device at the moment at which an objective ended."""

    free_bytes: int | None = None
    others: tuple[str, ...] = ()  #: who else held it, in words: "digits/3 3.1 GiB (lease 4.0 GiB)"


@dataclass(eq=False)
class Attempt:
    """What the main loop knows of one attempt. Times are of the monotonic clock."""

    job_id: str
    lease_id: str
    ticket: Ticket
    taken_at_s: float
    wait_s: float | None  #: from enqueue to take
    request_reason: str = ""
    stage: Stage = Stage.OPENING
    execution_id: str | None = None
    spec: SubmissionSpec | None = None
    server: TrialServer | None = None
    child: Child | None = None
    spare: bool = False
    handed_at_s: float | None = None
    started_at_s: float | None = None  #: user code begins
    ended_at_s: float | None = None
    started_epoch_s: float = 0.0
    used_before_bytes: int | None = None
    lease_bytes: int = 0  #: the largest it had
    lease_at_end_bytes: int = 0
    cap_bytes: int | None = None  #: as the child has last read it back
    cap_source: str = ""  #: what enforces it, in words
    move: Move | None = None
    shrunk_from_bytes: int | None = None  #: the lease it had before we made it smaller; None: it has that much
    lent_bytes: int = 0  #: of its lease, what it did not ask for: called back when another one wants it
    ooms_at_shrink: int = 0  #: those that nobody caught on purpose, before that
    refused_growth: str = ""  #: why it was not given more when it asked last
    been_around: bool = False  #: it has reported, so it has trained and evaluated once
    peak_seen_bytes: int = 0  #: the most it was seen to hold so far
    peak_since_s: float | None = None  #: no reading has shown more since then; None: since it began
    settled: bool = False  #: it has held no more for so long that this is taken for its peak
    scene: Scene | None = None  #: set when its outcome came
    kills_before: KernelKills | None = None  #: of the kernel's, when it was handed over
    kernel_killed: str = ""  #: where the kernel has killed for memory while it ran, in words
    last_words: str = ""  #: the end of what it printed
    measured_peak_bytes: int = 0  #: largest the device showed of it
    measured_source: str = ""
    sample: MemorySample = field(default_factory=MemorySample)
    steps: int = 0  #: of the optimizer, as the training helpers count them
    reports: int = 0  #: intermediate values told, which count for speed where nothing counts steps
    released: bool = False  #: the memory was seen back, or given up
    exclusive: bool = False  #: its lease still is the whole device
    reported: bool = False
    ending: Ending | None = None  #: set when this worker decides to end it
    outcome: Outcome | None = None
    outcome_at_s: float | None = None  #: the objective has ended; its process cleans up and leaves
    exit_code: int | None = None
    signal: int | None = None
    max_rss_bytes: int | None = None
    log_path: str | None = None
    root: int | None = None  #: number of its root trial; set when it is handed over
    hints: list[str] = field(default_factory=list)
    gaps: GapWatch | None = None  #: since its first sample
    mps: bool = False  #: it was started as a client of MPS
    mps_limit_bytes: int = 0  #: what the driver then lets it have, until its end
    mps_reason: str = ""  #: why not, on a card with MPS
    mps_client: bool | None = None  #: as the daemon says; None: not asked yet
    dropped: str | None = None  #: not ours any more: nothing is told, for this reason
    trouble: str = ""  #: what holds it up and what helps, in words, for as long as it does
    final_state: str = ""
    conclusion: Conclusion | None = None

    @property
    def label(self) -> str:
        """The trial in words: "digits/12"."""
        return f"{self.ticket.study_name}/{self.ticket.number}"

    @property
    def declared(self) -> bool:
        """True where the user has said what each trial needs: his figure is kept to."""
        return self.spec is not None and not read_vram(self.spec.vram).is_learned

    @property
    def unhandled_ooms(self) -> int:
        """Out-of-memory errors of its allocator that no helper of ours caught on purpose."""
        sample = self.sample
        raised = sample.num_ooms if sample.num_ooms_raised is None else min(sample.num_ooms, sample.num_ooms_raised)
        return max(0, raised - sample.num_ooms_handled)

    def end_because(self, kind: EndKind, text: str) -> bool:
        """Note why this worker ends it. The first reason stays; False when there was one already."""
        if self.ending is not None or self.stage in (Stage.ENDED, Stage.TOLD, Stage.CLOSED):
            return False
        self.ending = Ending(kind, text)
        return True
