"""Which trials run under MPS, and who is to blame when a fault takes all of them down. Pure.

Trials under MPS run in one address space of the driver. An illegal access by one of them is told to all that run then,
and no one says whose it was. So an objective's first trial runs outside; what a fault took down is tried again at no
charge; and an objective that is to blame, or twice under suspicion, runs outside from then on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

#: `auto`: above this share of the card too little is left for what a full card under MPS does to innocent trials.
MOST_BUDGET = 0.8
#: Faults of several clients within this time are one fault.
WINDOW_S = 3.0
#: A client that met no fault for so long after another's was not harmed by it.
_LATE_S = 120.0
#: So often an objective may be one of several suspects.
_SUSPICIONS = 2
#: A card that lets no client in, though none has met a fault, so often within this time is used without MPS.
_MOST_REFUSALS = 3
_REFUSALS_S = 600.0

#: The client itself did what the hardware forbids, or was told so because another did.
_OWN = re.compile(
    r"illegal memory access|misaligned address|illegal instruction|illegal address|unspecified launch failure"
    r"|invalid program counter|hardware stack error|CUDA_ERROR_ILLEGAL|cudaErrorIllegal",
    re.IGNORECASE,
)
#: MPS ended under the client.
_SHARED = re.compile(
    r"MPS (server|client|control)|mps_(rpc|client|server|connection)|MpsRpc|MpsClient|MpsServer|MpsConnection"
    r"|remote procedural call",
    re.IGNORECASE,
)
#: MPS did not let the client in: a server that ends after a fault tells those that come meanwhile that it is busy.
_REFUSED = re.compile(r"busy or unavailable|cudaErrorDevices?Unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE", re.IGNORECASE)


#: Any other word of the driver's or of a library's. A client that joins while others meet a fault is told no more than
#: that its first call failed. What makes no sense as a fault of the card is left out: the neighbours go on.
_VAGUE = re.compile(
    r"CUDA error|cudaError|CU(?:BLAS|DNN|SOLVER|SPARSE|FFT|RAND)_STATUS_|cuDNN error|CUDA driver error", re.IGNORECASE
)
_PLAIN = re.compile(
    r"device-side assert|out of memory|invalid (?:argument|device ordinal|configuration)|no kernel image"
)


class Sort(StrEnum):
    """What a trial's end says of MPS."""

    NONE = "none"  #: nothing
    VAGUE = "vague"  #: an error of the card's that is a fault only if others meet one at the same time
    OWN = "own"  #: a fault that may be its own
    SHARED = "shared"  #: MPS was taken from it: by somebody else's fault, or because the daemon ended
    REFUSED = "refused"  #: MPS did not let it in; those that are in go on


def sort_of(text: str, crash_signal: int | None) -> Sort:
    """Sort a trial's end by its error's text; a crash may be the same fault, met in a library that aborts."""
    if _SHARED.search(text):
        return Sort.SHARED
    if _REFUSED.search(text):
        return Sort.REFUSED
    if _OWN.search(text) or crash_signal in (6, 7, 11):
        return Sort.OWN
    return Sort.VAGUE if _VAGUE.search(text) and not _PLAIN.search(text) else Sort.NONE


class Standing(StrEnum):
    """How an objective stands with MPS on this card."""

    NEW = "new"  #: nothing known: its next trial runs outside, as a canary
    CLEARED = "cleared"  #: a trial of it ended well outside
    OUT = "out"  #: runs outside for good


@dataclass(frozen=True)
class Ended:
    """A client that ended."""

    name: str  #: of the trial
    objective: str
    sort: Sort
    at_s: float


@dataclass(frozen=True)
class Judgement:
    """What a fault was."""

    victims: tuple[str, ...]  #: to be tried again at no charge
    culprit: str | None  #: whose fault it was; None: nobody's, or not known
    leaves: tuple[str, ...]  #: objectives that run outside for good
    suspects: tuple[str, ...]  #: objectives that must show a canary again
    text: str
    ends_all: bool = True  #: with victims: whoever runs is one of them

    @property
    def shared(self) -> bool:
        """Say whether all that run are harmed."""
        return self.ends_all and bool(self.victims)


class MpsRules:
    """Standing of all objectives on one card.

    Args:
        mode: "on" or "auto".
        budget_bytes, total_bytes: Of the card.
    """

    def __init__(self, mode: str, budget_bytes: int, total_bytes: int) -> None:
        self._mode = mode
        self._standing: dict[str, Standing] = {}
        self._reasons: dict[str, str] = {}
        self._suspicions: dict[str, int] = {}
        self._witnesses: dict[str, Ended] = {}  #: trials that ran on when another met a fault, and that fault
        self._refused_s: list[float] = []  #: when trials were not let in though nobody had met a fault
        self.refusal = ""  #: why nothing runs under MPS on this card
        if mode == "auto" and budget_bytes > MOST_BUDGET * total_bytes:
            share = 100 * budget_bytes / total_bytes
            self.refusal = f"the budget is {share:.0f} % of the card; with --mps auto it may be at most 80 %"

    def why_outside(self, objective: str, *, alone: bool) -> str:
        """Say why a trial runs outside MPS; empty when it runs as a client.

        Args:
            objective: The trial's objective.
            alone: It has the card to itself, so that nothing is to be gained.
        """
        if self.refusal:
            return self.refusal
        standing = self._standing.get(objective, Standing.NEW)
        if standing is Standing.OUT:
            return f"its objective left MPS: {self._reasons[objective]}"
        if alone:
            return "it has the card to itself"
        if standing is Standing.NEW:
            return "its objective has not run well outside MPS yet"
        return ""

    @property
    def outside(self) -> dict[str, str]:
        """Objectives that run outside for good, and why."""
        return {name: self._reasons[name] for name, standing in self._standing.items() if standing is Standing.OUT}

    def canary_ended(self, objective: str, *, well: bool, cap_read_back: bool) -> None:
        """Take note of a trial that ran outside: it clears its objective, if it ended well.

        Args:
            objective: Its objective.
            well: It completed, or was pruned.
            cap_read_back: It has told the cap that torch holds it to; `auto` wants that.
        """
        is_new = self._standing.get(objective, Standing.NEW) is Standing.NEW
        if well and is_new and (cap_read_back or self._mode == "on"):
            self._standing[objective] = Standing.CLEARED

    def judge(self, ended: Iterable[Ended], still_running: Mapping[str, str]) -> Judgement:
        """Judge what ended within one window.

        Args:
            ended: Clients that ended with a fault, in order; at least one.
            still_running: Objectives of the clients that live, by their trial's name.
        """
        faults = _weighed([self._as_late(item) for item in ended])
        if faults[0].sort is Sort.VAGUE:
            return Judgement((), faults[0].name, (), (), f"an error of {faults[0].name} alone, and no fault")
        if all(item.sort is Sort.REFUSED for item in faults):
            return self._not_let_in(faults)
        own = [item for item in faults if item.sort is Sort.OWN]
        if len(faults) == 1 and own:
            # One that was busy elsewhere meets the fault only at its next call to the card.
            self._witnesses |= dict.fromkeys(still_running, own[0])
            harmed = "harmed no other trial so far" if still_running else "came when it was alone"
            return Judgement((), own[0].name, (), (), f"the fault of {own[0].name} {harmed}")
        late = {item.name: self._witnesses.pop(item.name) for item in faults if item.name in self._witnesses}
        if late and not own:
            return self._late(late, [item.name for item in faults] + list(still_running))
        victims = [item.name for item in faults if item.sort in (Sort.SHARED, Sort.REFUSED)] + list(still_running)
        if not own:
            return Judgement(tuple(victims), None, (), (), "MPS ended under its clients, by no trial's fault")
        if len(own) == 1:
            culprit = own[0]
            text = f"a fault of {culprit.name} took down all clients of MPS on this card"
            self._put_out(culprit.objective, text)
            return Judgement(tuple(victims), culprit.name, (culprit.objective,), (), text)
        return self._several(own, victims)

    def _not_let_in(self, refused: list[Ended]) -> Judgement:
        """Have them tried again; a card that goes on to let nobody in is used without MPS."""
        now_s = refused[-1].at_s
        recent = [at_s for at_s in self._refused_s if now_s - at_s <= _REFUSALS_S]
        self._refused_s = [*recent, now_s]
        names = tuple(item.name for item in refused)
        text = f"MPS did not let {', '.join(names)} in"
        if len(self._refused_s) >= _MOST_REFUSALS:
            minutes = f"{_REFUSALS_S / 60:g} minutes"
            self.refusal = f"it did not let clients in, {len(self._refused_s)} times within {minutes}"
            text = f"{text}; it is not used on this card any more"
        return Judgement(names, None, (), (), text, ends_all=False)

    def _as_late(self, item: Ended) -> Ended:
        """Take a fault of a trial that was there at an earlier fault for that one's."""
        earlier = self._witnesses.get(item.name)
        if earlier is None or item.at_s - earlier.at_s > _LATE_S:
            self._witnesses.pop(item.name, None)
            return item
        return replace(item, sort=Sort.SHARED)

    def _late(self, late: Mapping[str, Ended], victims: list[str]) -> Judgement:
        culprits = {item.name: item for item in late.values()}
        text = f"a fault of {', '.join(culprits)} took down all clients of MPS on this card"
        leaves = tuple(dict.fromkeys(item.objective for item in culprits.values()))
        for objective in leaves:
            self._put_out(objective, text)
        return Judgement(tuple(victims), next(iter(culprits)), leaves, (), text)

    def _several(self, own: list[Ended], victims: list[str]) -> Judgement:
        """All were told the same error: each may be to blame, and shows by its retry outside whether it was."""
        text = (
            f"a fault took down all clients of MPS on this card; it was one of {', '.join(item.name for item in own)}"
        )
        objectives = list(dict.fromkeys(item.objective for item in own))
        leaves, suspects = [], []
        for objective in objectives:
            self._suspicions[objective] = self._suspicions.get(objective, 0) + 1
            if len(objectives) == 1 or self._suspicions[objective] >= _SUSPICIONS:
                self._put_out(objective, text)
                leaves.append(objective)
            else:
                self._standing[objective] = Standing.NEW
                suspects.append(objective)
        everybody = [item.name for item in own] + victims
        return Judgement(tuple(everybody), None, tuple(leaves), tuple(suspects), text)

    def _put_out(self, objective: str, text: str) -> None:
        self._standing[objective] = Standing.OUT
        self._reasons[objective] = text


def _weighed(faults: list[Ended]) -> list[Ended]:
    """Say what vague errors are beside what else was met: somebody else's fault, or one of several suspects' own.

    One that stands alone stays vague: it is the trial's, as it would be outside MPS.
    """
    if len(faults) == 1:
        return faults
    beside = Sort.OWN if all(item.sort is Sort.VAGUE for item in faults) else Sort.SHARED
    return [replace(item, sort=beside) if item.sort is Sort.VAGUE else item for item in faults]
