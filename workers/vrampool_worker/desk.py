"""All that is done with the storage: opening trials, answering their calls, telling results. Runs in the storage lane.

The parent alone writes to Optuna's storage; the child has no connection. A write that the database does not take is
repeated until it does: what was trained is never trained again because a database was away.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import optuna
from optuna.trial import TrialState

from vrampool.errors import InputError, MessageError, VrampoolError
from vrampool.memory.declared import read_vram
from vrampool.messages import AttemptFacts, EndKind, SubmissionSpec, Ticket, Verdict
from vrampool.objectives.random_states import WORKER, RandomStates
from vrampool.objectives.samplers import open_pruner, open_sampler
from vrampool.settings import Settings
from vrampool.signing import Signer, open_spec
from vrampool.storage import (
    ATTEMPT,
    FINAL_STATES,
    REQUEST,
    Catalog,
    PlannedTrial,
    SubmissionRow,
    SubmissionState,
    WorkerView,
    claim,
    fail_running,
    is_fenced,
    is_transient,
    open_storage,
    prune_infeasible,
    record_facts,
    storage_of,
)
from vrampool.storage.marks import CLAIM, KEEP_LEASES
from vrampool_worker.settlement import Conclusion
from vrampool_worker.trial_server import TrialServer

_log = logging.getLogger("vrampool.worker")
T = TypeVar("T")

#: A worker that lives long serves many submissions; so many it remembers.
_KEPT_SPECS = 64


@dataclass(frozen=True)
class Opened:
    """A claimed trial, ready for a child."""

    spec: SubmissionSpec
    server: TrialServer
    snapshot: dict[str, Any]
    request_reason: str
    bundle: bytes | None
    bundle_signature: str | None
    seed: int
    wish_bytes: int | None = None  #: what may be lent to it beyond its request, that included
    keep_leases: str = ""  #: why no lease of its submission is made smaller any more; empty: they may be


@dataclass(frozen=True)
class NotOpened:
    """Why a trial is not run here. `refuse`: this worker can run no trial of the submission."""

    reason: str
    refuse: bool = False


class _Study(optuna.Study):
    """A study whose `stop` is passed on at once.

    Samplers that have tried everything call it from `tell`, before the trial's end is written: so whoever sees that
    trial finished sees the stop too, and asks for no other.
    """

    on_stop: Callable[[], None]

    def stop(self) -> None:
        self.on_stop()


class StudyDesk:
    """Optuna as the worker uses it. Every method blocks, and runs in one thread.

    Args:
        settings: `storage` names the database.
        signer: Checks the submissions.
        worker: This worker's name, written into claims.
        can_run: Tells why this worker cannot run an objective, or None.
    """

    def __init__(
        self, settings: Settings, signer: Signer, worker: str, can_run: Callable[[SubmissionSpec], str | None]
    ) -> None:
        assert settings.storage is not None
        self._url = settings.storage
        self._signer = signer
        self._worker = worker
        self._can_run = can_run
        self._storage: Any = None
        self._specs: dict[str, SubmissionSpec] = {}
        self._studies: dict[str, tuple[optuna.Study, RandomStates]] = {}
        self._bundles: dict[str, tuple[bytes, str]] = {}
        self.closing = threading.Event()  #: set at shutdown: stop repeating, give up
        self.fault = ""  #: what the database said last when it did not do what it was asked, in words
        self._asked_at_s: float | None = None  # of the call that is under way

    @property
    def silent_s(self) -> float:
        """Seconds for which the database has not done what it was asked; other threads read it too."""
        asked_at_s = self._asked_at_s
        return 0.0 if asked_at_s is None else time.monotonic() - asked_at_s

    def connect(self) -> None:
        """Open the storage; waits for a database or a coordinator that is not there yet."""
        self._repeat(self._connect, "open the storage", retry_missing=True)

    def _connect(self) -> None:
        if self._storage is None:
            self._storage = WorkerView(open_storage(self._url, create_schema=False))
            self._catalog = Catalog(self._storage)

    # ---- opening -------------------------------------------------------------------------------------

    def open(self, ticket: Ticket, wanted: Callable[[], bool] = lambda: True) -> Opened | NotOpened:
        """Claim a trial and open it.

        Args:
            ticket: The trial's.
            wanted: False once the trial was handed back, while the database did not answer: then it is left to others.
        """
        at_s = time.time()  # names the claim: a repeated one must know its own first try again
        what = f"open {ticket.study_name}/{ticket.number}"
        try:
            return self._repeat(lambda: self._open(ticket, at_s) if wanted() else self._leave(ticket, at_s), what)
        except Exception as error:
            if is_transient(error):  # the worker shuts down while the database is away: somebody else will run it
                raise
            # Left waiting it would come back for ever; told FAIL it says what is wrong, where its people look.
            _log.exception("%s cannot be opened", what)
            reason = f"its worker could not open it: {type(error).__name__}: {error}"
            return self._repeat(lambda: self._refuse(ticket, reason, at_s), what)

    def _open(self, ticket: Ticket, at_s: float) -> Opened | NotOpened:
        self._connect()
        row = self._catalog.submission(ticket.submission_id)
        if row is None:
            return NotOpened(f"the storage knows no submission {ticket.submission_id}")
        if row.state != SubmissionState.OPEN:
            return NotOpened(f"its submission is {row.state}: {row.reason}")  # nothing starts after a stop
        try:
            spec = self._spec(row)
        except MessageError as error:
            return self._refuse(ticket, f"the submission is refused: {error}", at_s)
        reason = self._can_run(spec)
        if reason is not None:
            return NotOpened(reason, refuse=True)
        bundle = self._bundle(spec)
        if isinstance(bundle, NotOpened):
            return self._refuse(ticket, bundle.reason, at_s)
        try:
            study, states = self._study(spec)
        except InputError as error:  # a sampler or pruner that cannot be imported here
            return NotOpened(str(error), refuse=True)
        if not claim(self._storage, ticket.trial_id, self._worker, at_s=at_s):
            return NotOpened("it is not waiting any more")
        states.seed_for(WORKER, ticket.number)  # no two trials draw the same, on whatever workers they run
        trial = PlannedTrial(study, ticket.trial_id)
        server = TrialServer(study, trial)
        frozen = self._storage.get_trial(ticket.trial_id)
        request = frozen.user_attrs.get(REQUEST) or {}
        seed = zlib.crc32(f"{spec.seed}:{ticket.number}".encode())
        body, signature = bundle if bundle is not None else (None, None)
        kept = self._keep_leases(study._study_id, spec)
        reason, wish_bytes = str(request.get("reason", "")), request.get("wish")
        return Opened(spec, server, server.snapshot(), reason, body, signature, seed, wish_bytes, kept)

    def _leave(self, ticket: Ticket, at_s: float) -> NotOpened:
        """Leave a trial to others, and take a claim back that may have been written although its answer got lost."""
        self._connect()
        trial = self._storage.get_trial(ticket.trial_id)
        reason = "it was handed back: the study storage did not answer"
        if trial.state == TrialState.RUNNING and trial.user_attrs.get(CLAIM + self._worker) == at_s:
            self._hand_back(ticket, reason)
        return NotOpened(reason)

    def hand_back(self, ticket: Ticket, reason: str) -> None:
        """End a claimed trial that was not begun, at no charge: another worker tries it."""
        self._repeat(lambda: self._hand_back(ticket, reason), "hand a trial back")

    def _hand_back(self, ticket: Ticket, reason: str) -> None:
        facts = AttemptFacts(end=EndKind.PREEMPTED, worker=self._worker, text=reason)
        fail_running(self._storage, ticket.trial_id, {ATTEMPT: facts.to_json()})

    def _keep_leases(self, study_id: int, spec: SubmissionSpec) -> str:
        """Return why no lease of the submission is made smaller any more; empty when they may be, or never are."""
        if not read_vram(spec.vram).is_learned:
            return ""
        return str(self._storage.get_study_system_attrs(study_id).get(KEEP_LEASES + spec.submission_id, ""))

    def _refuse(self, ticket: Ticket, reason: str, at_s: float) -> NotOpened:
        """Fail a trial that no worker can run, with the reason, where its people look."""
        if claim(self._storage, ticket.trial_id, self._worker, at_s=at_s):
            facts = AttemptFacts(end=EndKind.REFUSED, worker=self._worker, text=reason)
            fail_running(self._storage, ticket.trial_id, {ATTEMPT: facts.to_json()})
        return NotOpened(reason)

    def _spec(self, row: SubmissionRow) -> SubmissionSpec:
        if row.id not in self._specs:
            if len(self._specs) >= _KEPT_SPECS:
                self._specs.pop(next(iter(self._specs)))
            self._specs[row.id] = open_spec(self._signer, row.id, row.spec_text)
        return self._specs[row.id]

    def _bundle(self, spec: SubmissionSpec) -> tuple[bytes, str] | NotOpened | None:
        digest = spec.objective.bundle_sha256
        if digest is None:
            return None
        if digest not in self._bundles:
            try:
                found = self._catalog.get_bundle(digest)
                if found is None:
                    return NotOpened(f"the storage lacks the objective's bundle {digest[:12]}")
                self._signer.verify("bundle", found[0], found[1])
            except MessageError as error:
                return NotOpened(f"the objective's bundle is refused: {error}")
            self._bundles.clear()  # one at a time: it may be several MB
            self._bundles[digest] = found
        return self._bundles[digest]

    def _study(self, spec: SubmissionSpec) -> tuple[optuna.Study, RandomStates]:
        if spec.submission_id not in self._studies:
            if len(self._studies) >= _KEPT_SPECS:
                self._studies.pop(next(iter(self._studies)))
            study = _Study(
                spec.study_name,
                self._storage,
                sampler=open_sampler(spec.sampler, seed=spec.seed),
                pruner=open_pruner(spec.pruner),
            )
            study.on_stop = lambda: self.request_stop(spec.submission_id, "the sampler has nothing left to try")
            self._studies[spec.submission_id] = study, RandomStates(study.sampler)
        return self._studies[spec.submission_id]

    # ---- calls of the child --------------------------------------------------------------------------

    def call(self, server: TrialServer, name: str, args: dict[str, Any]) -> Any:
        """Answer one call of a proxy trial.

        Raises:
            UpdateFinishedTrialError: the trial was ended from outside; its child is to be ended.
            Exception: what Optuna raises for the objective.
        """
        return self._repeat(lambda: server.handle(name, args), f"serve {name}")

    def request_stop(self, submission_id: str, reason: str) -> None:
        """The objective or the sampler asked for the study's stop."""
        self._repeat(
            lambda: self._catalog.set_submission_state(
                submission_id, SubmissionState.STOPPING, reason, expected=(SubmissionState.OPEN,)
            ),
            "stop a study",
        )

    def ended(self, submission_ids: Iterable[str]) -> list[str]:
        """Return which of these submissions have ended. Those that this storage does not know are somebody else's."""
        known = {row.id for row in self._catalog.submissions(states=FINAL_STATES)}
        return [submission_id for submission_id in submission_ids if submission_id in known]

    # ---- telling -------------------------------------------------------------------------------------

    def tell(self, ticket: Ticket, spec: SubmissionSpec, conclusion: Conclusion) -> str:
        """Tell a result, however long the database takes. Returns the state told, or "dropped: why"."""
        return self._repeat(lambda: self._tell(ticket, spec, conclusion), f"tell {ticket.study_name}/{ticket.number}")

    def _tell(self, ticket: Ticket, spec: SubmissionSpec, conclusion: Conclusion) -> str:
        state = self._storage.get_trial(ticket.trial_id).state
        if state.is_finished():
            # Told by our own write whose answer got lost, or ended from outside: either way it is not ours to change.
            return f"dropped: it is {state.name} already"
        facts = {ATTEMPT: conclusion.facts.to_json()}
        if conclusion.facts.verdict == Verdict.SHRINK:
            # Before the retry can be there: whoever opens it reads this.
            study_id = self._storage.get_study_id_from_name(ticket.study_name)
            reason = f"trial {ticket.number} ran out of memory after its lease was made smaller"
            self._storage.set_study_system_attr(study_id, KEEP_LEASES + ticket.submission_id, reason)
        if conclusion.infeasible:
            won = prune_infeasible(self._storage, ticket.trial_id, conclusion.facts.over_gib or 0.0, facts)
            return TrialState.PRUNED.name if won else "dropped: it was ended from outside"
        failed = conclusion.facts.end not in (EndKind.COMPLETE, EndKind.PRUNED)
        if failed and (not conclusion.by_objective or not self._storage.get_trial(ticket.trial_id).params):
            # What the objective did not decide is nothing for the sampler to learn from; and one trial told FAIL
            # without parameters breaks a BruteForceSampler for good.
            won = fail_running(self._storage, ticket.trial_id, facts)
            return TrialState.FAIL.name if won else "dropped: it was ended from outside"
        try:
            record_facts(self._storage, ticket.trial_id, facts)
            return self._tell_study(ticket, spec, conclusion)
        except Exception as error:
            if is_fenced(error):
                return "dropped: it was ended from outside"
            raise

    def _tell_study(self, ticket: Ticket, spec: SubmissionSpec, conclusion: Conclusion) -> str:
        study, _ = self._study(spec)
        with self._storage.fresh():  # what is left of a grid depends on what others have told a moment ago
            if conclusion.values is not None:
                told = study.tell(ticket.number, conclusion.values)
            else:
                pruned = conclusion.facts.end == EndKind.PRUNED
                told = study.tell(ticket.number, state=TrialState.PRUNED if pruned else TrialState.FAIL)
        return str(told.state.name)

    def audit(self, tickets: Iterable[Ticket]) -> dict[str, str]:
        """Return why attempts that run here are to be ended: trial ended from outside, submission cancelled.

        Returns:
            Submission id and trial number, joined by "/", -> reason; "lost: ..." when the trial is not ours any more.
        """
        tickets = list(tickets)
        # The database is asked: the worker's view answers for the trials it holds from memory.
        now = storage_of(self._storage).database.trial_states(ticket.trial_id for ticket in tickets)
        found = {}
        states: dict[str, Any] = {}
        for ticket in tickets:
            key = f"{ticket.submission_id}/{ticket.number}"
            state = now.get(ticket.trial_id)
            if state != TrialState.RUNNING:
                found[key] = f"lost: the trial is {'gone' if state is None else state.name}"
                continue
            if ticket.submission_id not in states:
                row = self._catalog.submission(ticket.submission_id)
                states[ticket.submission_id] = row.state if row is not None else None
                if row is not None and row.state == SubmissionState.CANCELLING:
                    found[key] = row.reason or "cancelled"
            elif states[ticket.submission_id] == SubmissionState.CANCELLING:
                found[key] = "cancelled"
        return found

    # ---- faults --------------------------------------------------------------------------------------

    def _repeat(self, work: Callable[[], T], what: str, *, retry_missing: bool = False) -> T:
        """Do it until the database takes it; give up only at shutdown."""
        pause_s = 0.1
        said = 0.0
        before_s = self._asked_at_s  # a call may make another one
        self._asked_at_s = before_s or time.monotonic()
        try:
            while True:
                try:
                    return work()
                except Exception as error:
                    missing = retry_missing and isinstance(error, VrampoolError)
                    if not (missing or is_transient(error)) or self.closing.is_set():
                        raise
                    self.fault = str(error).splitlines()[0]
                    if time.monotonic() - said > 30:
                        said = time.monotonic()
                        _log.warning("cannot %s yet: %s; it is tried again", what, self.fault)
                    self.closing.wait(pause_s)
                    pause_s = min(pause_s * 2, 5.0)
        finally:
            self._asked_at_s = before_s
