"""The handle of a submission: what `submit` returns, and what `attach` finds again."""

from __future__ import annotations

import copy
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import optuna
from optuna.trial import FrozenTrial, TrialState

from vrampool import retries
from vrampool.errors import StudyFailedError
from vrampool.messages import AttemptFacts, SubmissionSpec
from vrampool.notebook.card import CardState, to_html, to_text
from vrampool.notebook.live import Painter, in_notebook, waiting
from vrampool.notebook.state import read_card
from vrampool.queueing import Events, History, Registry, TransientRedisError, WorkerRecord
from vrampool.storage import (
    FINAL_STATES,
    Catalog,
    SubmissionRow,
    SubmissionState,
    attempt_of,
    keep_trying,
    mark_of,
)
from vrampool.waiting import TroubleNews

if TYPE_CHECKING:
    import pandas as pd

#: Pause between two looks at the storage while waiting. Events wake earlier.
LOOK_S = 0.5
#: Pause after an event before the next look.
PAUSE_S = 0.1
#: Trials that wait for longer than this without a worker that can run them are told about.
ORPHAN_S = 5.0
#: A local pool starts its workers itself, and says itself why one does not start; a busy machine takes its time.
LOCAL_START_S = 30.0
Callback = Callable[[optuna.Study, FrozenTrial], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """Where a submission is. Counts are of root trials; attempts that were retried count once."""

    state: str
    reason: str
    wanted: int | None  #: root trials of this submission; None: as many as come until it is stopped
    finished: int
    running: int
    waiting: int
    counts: dict[str, int] = field(default_factory=dict)  #: finished root trials by their state's name
    attempts: int = 0  #: trials created, retries among them

    @property
    def final(self) -> bool:
        return self.state in FINAL_STATES


class Handle:
    """A submission on its way.

    Args:
        storage: The pool's storage, opened by this process.
        connection: Redis.
        pool: The pool's name.
        row: The submission's row.
        spec: What was asked for.
        study: The real Optuna study.
    """

    def __init__(
        self, storage: Any, connection: Any, pool: str, row: SubmissionRow, spec: SubmissionSpec, study: optuna.Study
    ) -> None:
        self.id = row.id
        self.spec = spec
        self.study = study
        self._storage = storage
        self._catalog = Catalog(storage)
        self._events = Events(connection, pool)
        self._registry = Registry(connection, pool)
        self._history = History(connection, pool)
        self._yielded: set[int] = set()
        self._painter: Painter | None = None
        self._told_away = False
        self.callbacks: list[Callback] = []
        self.probe: Any = None  #: what `submit(..., probe=True)` found (`vrampool.probing.Findings`)
        self.check: Callable[[], None] = lambda: None  #: raises what ended the pool by itself
        self.is_local = False  #: its pool starts workers of its own

    # ---- reading -----------------------------------------------------------------------------------

    @property
    def study_name(self) -> str:
        return self.spec.study_name

    @property
    def state(self) -> SubmissionState:
        return self._row().state

    @property
    def reason(self) -> str:
        """Why it ended or is ending; empty while nothing is to be said."""
        return self._row().reason or ""

    def _row(self) -> SubmissionRow:
        row = self._catalog.submission(self.id)
        if row is None:
            raise StudyFailedError(f"submission {self.id} is no longer in the storage")
        return row

    @property
    def trials(self) -> list[FrozenTrial]:
        """All attempts of this submission, by number."""
        return self._own_of(self._read_study())

    def _read_study(self) -> list[FrozenTrial]:
        return list(self._storage.get_all_trials(self.study._study_id, deepcopy=False))

    def _own_of(self, trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
        return [trial for trial in trials if (mark := mark_of(trial)) is not None and mark.submission == self.id]

    @property
    def best_trial(self) -> FrozenTrial:
        """The study's best trial.

        Raises:
            ValueError: no trial is complete; the text says what became of them.
        """
        try:
            return self.study.best_trial
        except ValueError:
            raise ValueError(self._none_complete()) from None

    @property
    def best_trials(self) -> list[FrozenTrial]:
        return self.study.best_trials

    @property
    def best_value(self) -> float:
        value = self.best_trial.value
        assert value is not None
        return value

    @property
    def best_params(self) -> dict[str, Any]:
        return self.best_trial.params

    def _none_complete(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in sorted(self.progress().counts.items()))
        more = f"; `vrampool why {self.study_name}` says more" if counts else ""
        return f"no trial of {self.study_name} is complete: {counts or 'none has ended'}{more}"

    def trials_dataframe(self, **kwargs: Any) -> pd.DataFrame:
        """Return the study's trials as Optuna's `trials_dataframe` does, with memory columns in bytes added."""
        frame = self.study.trials_dataframe(**kwargs)
        facts = {trial.number: attempt_of(trial) for trial in self.study.get_trials(deepcopy=False)}
        if "number" in frame:
            for column in ("request_bytes", "lease_bytes", "peak_bytes", "device", "end"):
                frame[column] = [getattr(facts.get(number), column, None) for number in frame["number"]]
        return frame

    def releases(self) -> list[dict[str, Any]]:
        """Return what came back after the study's trials, for pictures; empty while Redis is away."""
        try:
            return self._history.releases(self.study_name)
        except TransientRedisError:
            return []

    def finished_roots(self, trials: Sequence[FrozenTrial] | None = None) -> list[FrozenTrial]:
        """Return the last attempt of every root trial that has ended for good and counts, in order of its end.

        Args:
            trials: The submission's trials as read just now; None: read them.
        """
        found = retries.roots(self.trials if trials is None else trials, self.spec)
        ended = [root.last for root in found if root.counted]
        return sorted(ended, key=lambda trial: (trial.datetime_complete is None, trial.datetime_complete, trial.number))

    def progress(self) -> Progress:
        """Return where the submission is now."""
        row = self._row()
        study = self._read_study()
        trials = self._own_of(study)
        finished = self.finished_roots(trials)
        wanted = self.spec.n_trials
        if self.spec.total is not None:
            wanted = max(self.spec.total - retries.count_of_others(study, self.id), 0)
        return Progress(
            state=row.state,
            reason=row.reason or "",
            wanted=wanted,
            finished=len(finished),
            running=sum(trial.state == TrialState.RUNNING for trial in trials),
            waiting=sum(trial.state == TrialState.WAITING for trial in trials),
            counts=dict(Counter(trial.state.name for trial in finished)),
            attempts=len(trials),
        )

    # ---- waiting -----------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None, *, on_progress: Callable[[Progress], None] | None = None) -> Handle:
        """Wait until the submission has ended; run callbacks meanwhile, in this thread. A notebook shows a live card.

        Args:
            timeout: Give up after so many seconds.
            on_progress: Called at every look, about twice a second.

        Raises:
            TimeoutError: it has not ended in time. The submission goes on.
            KeyboardInterrupt: passes at once; the submission goes on, `cancel` ends it.
        """
        with waiting(self) as look:
            for progress in self.watch(timeout):
                look(progress.final)
                if on_progress is not None:
                    on_progress(progress)
        if self._painter is not None:  # the end is shown before the next cell runs
            self._painter.paint()
        return self

    def watch(self, timeout: float | None = None) -> Iterator[Progress]:
        """Yield the progress at every look until the end; the last one is final. Raises as `wait` does.

        While the database is away it waits for it, and says so once: the trials go on, and so does the wait.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        warned = False
        started = time.monotonic()
        troubles = TroubleNews(self.study_name, self.workers, started)
        with self._events.subscribe() as wake:
            while True:
                progress = self.outlast(self.progress, deadline)
                self._run_callbacks(deadline)
                yield progress
                if progress.final:
                    return
                self.check()
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"{self.study_name} has not ended after {timeout:g} s; it goes on")
                if not warned and (waited_s := time.monotonic() - started) > ORPHAN_S and not progress.running:
                    warned = self._warn_without_worker(waited_s)
                for text in troubles.at(time.monotonic()):
                    warnings.warn(text, stacklevel=2)
                left = LOOK_S if deadline is None else min(LOOK_S, max(0.0, deadline - time.monotonic()))
                # Tiny trials end by the dozen: each look reads the study, so events within one pause are one look.
                if wake.wait(left):
                    time.sleep(min(PAUSE_S, left))
                    wake.read()

    def outlast(self, call: Callable[[], T], deadline: float | None = None) -> T:
        """Return what a call of the database gives, however long that is away.

        Raises:
            TransientStorageError: it was away until the deadline, of the monotonic clock.
        """

        def go_on(pause_s: float) -> bool:
            self.check()
            if not self._told_away:
                warnings.warn("the study storage does not answer; the study goes on, and this waits", stacklevel=4)
            self._told_away = True
            time.sleep(pause_s)
            return deadline is None or time.monotonic() < deadline

        return keep_trying(call, wait=go_on)

    def _run_callbacks(self, deadline: float | None) -> None:
        if self.callbacks:
            for trial in self.outlast(lambda: list(self.newly_finished()), deadline):
                self.call_back(self.callbacks, self.study, trial)

    def newly_finished(self) -> Iterator[FrozenTrial]:
        """Yield each root trial that has ended for good and counts, once in this handle's life."""
        for trial in self.finished_roots():
            if trial.number not in self._yielded:
                self._yielded.add(trial.number)
                yield trial

    def call_back(self, callbacks: Sequence[Callback], study: optuna.Study, trial: FrozenTrial) -> None:
        """Call the user's callbacks for one trial; `study.stop()` in one of them stops this submission.

        As in Optuna they are not called for the trial whose exception ends the study.
        """
        if retries.uncaught(trial, self.spec) is not None:
            return
        for callback in callbacks:
            with _in_optimize_loop(study):
                callback(study, copy.deepcopy(trial))
        if study._stop_flag:
            study._stop_flag = False
            self.outlast(lambda: self.stop("stopped by a callback"))

    def _warn_without_worker(self, waited_s: float) -> bool:
        try:
            if self.is_local and waited_s < LOCAL_START_S and not self.workers():
                return False
            text = self.without_worker()
        except TransientRedisError:  # the storage is the truth; Redis may come back
            return False
        if text is not None:
            warnings.warn(text, stacklevel=2)
        return text is not None

    def without_worker(self) -> str | None:
        """Return why nothing can run what waits, or None when some live worker can."""
        workers = self._registry.workers()
        if not workers:
            return "no worker is running: start one with `vrampool worker --gpu all` (or `--gpu cpu`)"
        refusals = [worker.refused.get(self.id) for worker in workers]
        if all(refusals):
            return f"no worker can run this submission: {refusals[0]}"
        states = {worker.state for worker in workers}
        if states and "ready" not in states:
            return f"no worker takes trials now: {workers[0].name} is {workers[0].state}: {workers[0].reason}"
        return None

    # ---- ending ------------------------------------------------------------------------------------

    def stop(self, reason: str = "stopped") -> None:
        """Create no more trials; those that run finish, those that wait leave."""
        if self._catalog.set_submission_state(
            self.id, SubmissionState.STOPPING, reason, expected=(SubmissionState.OPEN,)
        ):
            self._events.publish({"submission": self.id, "state": str(SubmissionState.STOPPING)})

    def cancel(self, reason: str = "cancelled") -> None:
        """End it now: running trials are stopped and told FAIL."""
        expected = (SubmissionState.OPEN, SubmissionState.STOPPING, SubmissionState.FAILING)
        if self._catalog.set_submission_state(self.id, SubmissionState.CANCELLING, reason, expected=expected):
            self._events.publish({"submission": self.id, "state": str(SubmissionState.CANCELLING)})

    # ---- telling -----------------------------------------------------------------------------------

    def failures(self) -> dict[str, int]:
        """Return what went wrong with finished root trials, one line each, with its count; most frequent first."""
        lines: Counter[str] = Counter()
        for trial in self.finished_roots():
            if trial.state == TrialState.FAIL:
                lines[_reason_line(attempt_of(trial), trial)] += 1
        return dict(lines.most_common())

    def workers(self) -> list[WorkerRecord]:
        """Return what live workers last said of their devices; none while Redis is away."""
        try:
            return self._registry.workers()
        except TransientRedisError:
            return []

    def card(self) -> CardState:
        """Return what a notebook shows of the submission."""
        return self.outlast(lambda: read_card(self))

    def _repr_html_(self) -> str:
        return to_html(self.card())

    def _ipython_display_(self) -> None:
        """Show a card that follows the submission from now on, while the notebook goes on to other cells."""
        if not in_notebook():  # IPython's terminal
            print(to_text(self.card()))
            return
        if self._painter is not None:
            self._painter.stop()
        self._painter = Painter(self, lambda state: state.state in FINAL_STATES)
        self._painter.start()

    def __repr__(self) -> str:
        progress = self.progress()
        wanted = "" if progress.wanted is None else f"/{progress.wanted}"
        finished = f"{progress.finished}{wanted} finished, {progress.running} running"
        return f"<vrampool {self.study_name}: {progress.state}, {finished}>"


def _reason_line(facts: AttemptFacts | None, trial: FrozenTrial) -> str:
    if facts is None:
        return str(trial.user_attrs.get("vrampool:lost") or "failed from outside")
    first = facts.text.strip().splitlines()
    return first[0][:300] if first else facts.end


class _in_optimize_loop:
    """Let a callback call `study.stop()` as Optuna allows inside its own loop."""

    def __init__(self, study: optuna.Study) -> None:
        self._study = study

    def __enter__(self) -> None:
        self._before = self._study._thread_local.in_optimize_loop
        self._study._thread_local.in_optimize_loop = True

    def __exit__(self, *error: object) -> None:
        self._study._thread_local.in_optimize_loop = self._before
