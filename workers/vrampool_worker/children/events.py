"""What a worker hears of a child, in the order in which it can come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class EventKind(StrEnum):
    """Kind of an event; beside it, what its data hold."""

    IMPORTING = "importing"  #: it begins to import a module ahead of its trial. {module, pid}
    READY = "ready"  #: imports are done, it waits for its trial or has it already. {pid, preload_s}
    STARTED = "started"  #: cap and seeds are set, the objective is loaded next. {cap_bytes|None, cap_source: in words}
    CALL = "call"  #: a call of the proxy trial, to be answered with `Child.reply`. {id, name, args}
    SAMPLE = "sample"  #: memory as the child sees it. `MemorySample` fields
    STEP = "step"  #: optimizer steps so far. {steps}
    HINT = "hint"  #: one sentence of advice for the study's report. {text}
    #: answer to a recap: what was asked for, the cap that holds now, what was given back for it, what torch's allocator
    #: holds (None: not known), and whether anything holds the trial to it.
    #: {asked_bytes, cap_bytes, freed_bytes, held_bytes|None, enforced}
    RECAPPED = "recapped"
    GROW = "grow"  #: it holds nearly all of its cap and asks for more; answered by a recap, or by `stay`
    OUTCOME = "outcome"  #: how the objective ended; the process only cleans up after it. `Outcome` fields
    MISBEHAVED = "misbehaved"  #: it sent what is no message of ours, and is being killed. {text}
    LOG_OVERFLOW = "log_overflow"  #: it printed more than is kept; from now on the middle is left out. {kept_bytes}
    EXITED = "exited"  #: the trial's process is gone; no OUTCOME after this. {exit_code, signal, max_rss_bytes} or None
    GONE = "gone"  #: nothing of its tree lives: the memory can be expected back. Log whole, all closed; the last one


@dataclass(frozen=True)
class Event:
    """Something that happened to a child."""

    kind: EventKind
    data: Mapping[str, Any] = field(default_factory=dict)
