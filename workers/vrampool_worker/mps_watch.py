"""MPS in a worker's loop: who becomes a client, whether he really is one, and what follows from a fault."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vrampool.messages import EndKind, OutcomeKind
from vrampool.queueing import MpsState
from vrampool.settings import Settings
from vrampool_worker.attempts import Attempt, Ending, Stage
from vrampool_worker.devices.mps import PROGRAM, MpsDaemon, MpsError, find_program
from vrampool_worker.lanes import Lane
from vrampool_worker.ledger.concurrency import Concurrency
from vrampool_worker.mps_rules import WINDOW_S, Ended, MpsRules, Sort, sort_of

if TYPE_CHECKING:
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")
_LOOK_S = 1.0
#: The daemon is asked so often whether a trial is its client: one that is about to end leaves it before it is gone.
_ASKS = 3
_ASK_AGAIN_S = 0.5
#: Objectives that run outside and are told by name; the newest.
_MOST_TOLD = 8


class MpsWatch:
    """Only the main loop calls it; what blocks is done in a lane of its own.

    Args:
        loop: The worker's loop.
        daemon: The card's daemon, not started yet.
        rules: Who runs under it.
        concurrency: What the card gains from; under MPS a card takes more trials.
    """

    def __init__(
        self, loop: WorkerLoop, daemon: MpsDaemon, rules: MpsRules, concurrency: Concurrency | None = None
    ) -> None:
        self._loop = loop
        self._daemon = daemon
        self._rules = rules
        self._concurrency = concurrency
        self._lane = Lane("vrampool-mps", loop.inbox)
        self._clients: dict[str, Attempt] = {}  #: by lease id, as long as they run
        self._held: list[tuple[Attempt, Ended]] = []  #: ended with a fault; how, is judged at the end of the window
        self._checking: set[str] = set()
        self._ready = False

    @property
    def state(self) -> str:
        """Return "starting", "on" or "off"."""
        return "on" if self._ready else "off" if self._rules.refusal else "starting"

    def told(self) -> MpsState:
        """Return how MPS stands on this card, for the worker's record."""
        outside = list(self._rules.outside.items())[-_MOST_TOLD:]
        clients = sum(item.stage is Stage.RUNNING and item.mps_client is not False for item in self._clients.values())
        return MpsState(self.state, self._rules.refusal, clients, {_name(key): why for key, why in outside})

    # ---- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemon, unless nothing is to run under it."""
        if self._rules.refusal:
            _log.warning("MPS is off: %s", self._rules.refusal)
            return
        try:
            self._daemon.start()
        except MpsError as error:
            self._give_up(str(error))
            return
        self._lane.submit(self._daemon.await_start, self._on_started)

    def _on_started(self, _result: object, error: BaseException | None) -> None:
        if error is not None:
            self._give_up(str(error))
            return
        self._ready = True
        if self._concurrency is not None:
            self._concurrency.run_side_by_side(True)
        _log.info("MPS is on, below process %s", self._daemon.guard_pid)
        self._look()

    def _look(self) -> None:
        """See that the daemon lives; again every second."""
        if not self._ready:
            return
        if not self._daemon.running:
            self._daemon.sweep()
            self._give_up("its daemon has ended")
            return
        self._loop.timers.at(time.monotonic() + _LOOK_S, self._look)

    def _give_up(self, why: str) -> None:
        """Start no more clients. Those that run meet the end of MPS by themselves, and are judged then."""
        _log.warning("MPS is off: %s", why)
        self._ready, self._rules.refusal = False, why
        if self._concurrency is not None:
            self._concurrency.run_side_by_side(False)

    def close(self) -> None:
        """End the daemon; the trials are gone."""
        self._ready = False
        self._lane.stop(5.0)
        self._daemon.close()

    # ---- who becomes a client ------------------------------------------------------------------------

    def place(self, attempt: Attempt) -> dict[str, str]:
        """Say where a trial runs; return the variables that make it so, to be set before its first use of CUDA."""
        why = self._rules.why_outside(_objective(attempt), alone=attempt.exclusive)
        if not why and not self._ready:
            why = "MPS is starting"
        if not why and self._held:
            why = "MPS has just met a fault"
        attempt.mps, attempt.mps_reason = not why, why
        if why:
            return {}
        self._clients[attempt.lease_id] = attempt
        attempt.mps_limit_bytes = attempt.lease_bytes
        return self._daemon.client_env(attempt.mps_limit_bytes)

    def on_sample(self, attempt: Attempt) -> None:
        """A trial has begun with CUDA: ask the daemon, once, whether it is a client."""
        checked = attempt.mps_client is not None or attempt.lease_id in self._checking
        if not attempt.mps or checked or not attempt.sample.cuda_initialized or not self._ready:
            return
        self._checking.add(attempt.lease_id)
        self._ask(attempt, _ASKS)

    def _ask(self, attempt: Attempt, asks: int) -> None:
        """Ask the daemon; of so many times this is the first."""
        pid = attempt.child.pid if attempt.child is not None else None
        if pid is None or not self._ready or not _computes(attempt):
            self._checking.discard(attempt.lease_id)
            return
        self._lane.submit(self._daemon.clients, lambda found, error: self._on_clients(attempt, pid, asks, found, error))

    def _on_clients(
        self, attempt: Attempt, pid: int, asks: int, found: set[int] | None, error: BaseException | None
    ) -> None:
        if found is not None and pid not in found and asks > 1 and _computes(attempt):
            self._loop.timers.at(time.monotonic() + _ASK_AGAIN_S, lambda: self._ask(attempt, asks - 1))
            return
        self._checking.discard(attempt.lease_id)
        if error is not None or found is None:
            _log.warning("whether %s runs under MPS is not known: %s", attempt.label, error)
        elif pid in found:
            attempt.mps_client = True
        elif _computes(attempt):
            # The driver's limit holds for clients alone: this one is held by torch's cap only.
            attempt.mps_client = False
            self._give_up(f"{attempt.label} was given to MPS and runs without it (its clients are {sorted(found)})")

    # ---- ends ----------------------------------------------------------------------------------------

    def holds(self, attempt: Attempt) -> bool:
        """Take note of a trial that ended. True: how it ended is decided in a moment, by `Runner.settle`."""
        self._clients.pop(attempt.lease_id, None)
        outcome = attempt.outcome
        if not attempt.mps:
            well = outcome is not None and outcome.kind in (OutcomeKind.VALUE, OutcomeKind.PRUNED)
            read_back = attempt.sample.cuda_initialized and attempt.sample.cap_bytes is not None
            self._rules.canary_ended(_objective(attempt), well=well and attempt.ending is None, cap_read_back=read_back)
            return False
        if attempt.ending is not None or (outcome is not None and outcome.kind != OutcomeKind.FAILED):
            return False
        text = outcome.text + outcome.type_name if outcome is not None else ""
        sort = sort_of(text, attempt.signal if outcome is None else None)
        if sort is Sort.NONE:
            return False
        now_s = time.monotonic()
        if not self._held:
            self._loop.timers.at(now_s + WINDOW_S, self._judge)
        self._held.append((attempt, Ended(attempt.label, _objective(attempt), sort, now_s)))
        return True

    def _judge(self) -> None:
        held, self._held = self._held, []
        running = {item.label: _objective(item) for item in self._clients.values() if item.stage is Stage.RUNNING}
        judgement = self._rules.judge([ended for _, ended in held], running)
        (_log.warning if judgement.victims else _log.info)("MPS: %s", judgement.text)
        if self._ready and self._rules.refusal:
            self._give_up(self._rules.refusal)
        for attempt, ended in held:
            if ended.name in judgement.victims:
                attempt.ending = Ending(EndKind.PREEMPTED, judgement.text)
            self._loop.runner.settle(attempt)
        if judgement.shared:
            for attempt in list(self._clients.values()):  # the next thing they do on the card fails
                self._loop.runner.end(attempt, EndKind.PREEMPTED, judgement.text)


def _computes(attempt: Attempt) -> bool:
    """Say whether a trial is still at work: one that has ended is no client any more."""
    return attempt.stage is Stage.RUNNING and attempt.outcome is None


def _objective(attempt: Attempt) -> str:
    """Name what a trial runs: the same code in two submissions is the same objective."""
    assert attempt.spec is not None
    reference = attempt.spec.objective
    return f"{reference.bundle_sha256 or reference.source_sha256 or ''}:{reference.target}"


def _name(objective: str) -> str:
    """Return an objective's name for people: "train.py:objective"."""
    return objective.partition(":")[2].rpartition("/")[2]


def make_mps(
    loop: WorkerLoop, settings: Settings, env: Mapping[str, str], concurrency: Concurrency | None
) -> MpsWatch | None:
    """Return MPS for a loop whose settings ask for it; None where it is off, or cannot be: then the loop is told why.

    Args:
        loop: The worker's loop.
        settings: `mps` and `share` count.
        env: Environment of the daemon: that of the children, without the pool's secrets.
        concurrency: What the card gains from.
    """
    if settings.mps == "off":
        return None
    program = find_program(env)
    lacks = ""
    if loop.device.kind != "cuda":
        lacks = "the device is no GPU"
    elif settings.share:
        lacks = "the card is shared with other workers, and a card has one daemon"
    elif program is None:
        lacks = f"{PROGRAM} is not installed"
    try:
        if program is not None and not lacks:
            daemon = MpsDaemon(loop.device.id, program, env)
    except (MpsError, OSError) as error:
        lacks = str(error)
    if lacks:
        _log.warning("MPS is off: %s", lacks)
        loop.mps_lacks = lacks
        return None
    rules = MpsRules(settings.mps, loop.ledger.budget_bytes, loop.device.total_bytes)
    return MpsWatch(loop, daemon, rules, concurrency)
