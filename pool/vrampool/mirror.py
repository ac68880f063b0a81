"""A user's own study and the pool's storage: followed in place where it lives there, else copied and mirrored back."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import optuna
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from vrampool.handle import Callback, Handle
from vrampool.storage import CANCELLED, attempt_of, url_of

if TYPE_CHECKING:
    from vrampool.pool import Pool

_log = optuna.logging.get_logger("optuna.vrampool")


class Link:
    """Follows a submission on behalf of the user's study, which lives in the pool's storage itself."""

    def __init__(self, study: optuna.Study, study_name: str) -> None:
        self.study = study
        self.study_name = study_name  #: of the study in the pool's storage

    def begin(self) -> None:
        """The submission is made: its trials are the pool's from now on."""

    def abandon(self) -> None:
        """There is no submission after all: leave everything as it was."""

    def update(self) -> None:
        """Bring the user's study up to date."""

    def find(self, trial: FrozenTrial) -> FrozenTrial:
        """Return a trial of the pool's study as the user's study has it."""
        return trial

    def close(self) -> None:
        """Leave nothing unfinished behind that nobody will finish."""

    def follow(self, handle: Handle, callbacks: Sequence[Callback], show_progress_bar: bool) -> None:
        """Wait for the end; run the callbacks on each finished root trial, one at a time.

        As in Optuna, an exception of a callback ends the study: running trials finish first. Ctrl-C does not wait for
        them.
        """
        bar = _Bar(handle.spec.n_trials) if show_progress_bar else None
        raised: Exception | None = None
        try:
            self.begin()
            for progress in handle.watch():
                try:
                    if raised is None:
                        self._tell(handle, callbacks)
                    else:
                        handle.outlast(self.update)
                except Exception as error:
                    raised = error
                    handle.stop(f"a callback raised {type(error).__name__}: {error}")
                if bar is not None:
                    bar.show(progress.finished)
        except BaseException:
            handle.stop("the submitting process was interrupted")
            raise
        finally:
            self.close()
            if bar is not None:
                bar.close()
        if raised is not None:
            raise raised

    def _tell(self, handle: Handle, callbacks: Sequence[Callback]) -> None:
        ended = handle.outlast(lambda: list(handle.newly_finished()))
        handle.outlast(self.update)  # after they were read: it has them all
        for trial in ended:
            found = self.find(trial)
            self._log_as_optuna_does(found)
            handle.call_back(callbacks, self.study, found)

    def _log_as_optuna_does(self, trial: FrozenTrial) -> None:
        if trial.state == TrialState.COMPLETE:
            self.study._log_completed_trial(trial.values, trial.number, trial.params)
            return
        facts = attempt_of(trial)
        text = facts.text if facts is not None else ""
        if trial.state == TrialState.PRUNED:
            _log.info("Trial %s pruned. %s", trial.number, text)
        else:
            _log.warning("Trial %s failed with parameters: %s because of: %s", trial.number, trial.params, text)


class MirrorLink(Link):
    """The same for a study in memory, or in another database: copied into the pool's storage, and mirrored back.

    Trial for trial: what the pool's study holds under a number, the user's study holds under the same number. So
    `trial.number` is the same in the objective and afterwards, and what an objective saved under it is found again.
    """

    def __init__(self, study: optuna.Study, study_name: str, storage: Any) -> None:
        super().__init__(study, study_name)
        self._own = study._storage
        self._storage = storage
        self._id: int = storage.create_new_study(study.directions, study_name)
        self._ids: list[int] = []  #: of the user's trials, by the number of the pool's
        self._open: set[int] = set()  #: numbers of trials that are mirrored and not finished yet
        self._foreign: list[int] = []  #: ids of copies of trials that the user himself has under way
        for key, value in self._own.get_study_system_attrs(study._study_id).items():
            storage.set_study_system_attr(self._id, key, value)
        for key, value in study.user_attrs.items():
            storage.set_study_user_attr(self._id, key, value)
        for trial in study.get_trials(deepcopy=False):
            copied_id = storage.create_new_trial(self._id, trial)
            if trial.state == TrialState.WAITING:
                self._open.add(trial.number)
            elif not trial.state.is_finished():
                self._foreign.append(copied_id)
            self._ids.append(trial._trial_id)

    def begin(self) -> None:
        for number in self._open:
            # Claimed here, run there: a later `study.optimize` must not run it a second time.
            self._own.set_trial_state_values(self._ids[number], TrialState.RUNNING)

    def abandon(self) -> None:
        self._storage.delete_study(self._id)

    def update(self) -> None:
        for trial in self._storage.get_all_trials(self._id, deepcopy=False):
            if trial.number >= len(self._ids):
                self._ids.append(self._create(trial))
                if not trial.state.is_finished():
                    self._open.add(trial.number)
            elif trial.number in self._open and trial.state.is_finished():
                self._open.discard(trial.number)
                self._finish(self._ids[trial.number], trial)
        for key, value in self._storage.get_study_user_attrs(self._id).items():
            if self.study.user_attrs.get(key) != value:
                self.study.set_user_attr(key, value)

    def _create(self, trial: FrozenTrial) -> int:
        if trial.state.is_finished():
            return int(self._own.create_new_trial(self.study._study_id, trial))
        # A place under its number, filled when it has ended. RUNNING, so that nobody pops it.
        place = optuna.trial.create_trial(state=TrialState.RUNNING, user_attrs=trial.user_attrs)
        place.datetime_start = trial.datetime_start or datetime.datetime.now()
        return int(self._own.create_new_trial(self.study._study_id, place))

    def _finish(self, trial_id: int, trial: FrozenTrial) -> None:
        own = self._own
        for name, value in trial.params.items():
            distribution = trial.distributions[name]
            own.set_trial_param(trial_id, name, distribution.to_internal_repr(value), distribution)
        for step, reported in trial.intermediate_values.items():
            own.set_trial_intermediate_value(trial_id, step, reported)
        for key, attr in trial.user_attrs.items():
            own.set_trial_user_attr(trial_id, key, attr)
        for key, attr in trial.system_attrs.items():
            own.set_trial_system_attr(trial_id, key, attr)
        own.set_trial_state_values(trial_id, trial.state, trial.values)
        if isinstance(own, InMemoryStorage):
            # What it returns is its own record. The times in it are those of the mirroring.
            record = own.get_trial(trial_id)
            record.datetime_start = trial.datetime_start or record.datetime_start
            record.datetime_complete = trial.datetime_complete

    def find(self, trial: FrozenTrial) -> FrozenTrial:
        return self._own.get_trial(self._ids[trial.number])

    def close(self) -> None:
        for number in sorted(self._open):  # interrupted: they go on in the pool, and nobody brings them back
            trial_id = self._ids[number]
            self._own.set_trial_user_attr(trial_id, CANCELLED, f"interrupted; see study {self.study_name} of the pool")
            self._own.set_trial_state_values(trial_id, TrialState.FAIL)
        for trial_id in self._foreign:
            self._storage.set_trial_state_values(trial_id, TrialState.FAIL)


def link(pool: Pool, study: optuna.Study) -> Link:
    """Return how `study` is followed: in place when it lives in the pool's database, else mirrored."""
    if (url := url_of(study)) is not None and url == url_of(pool.storage):
        return Link(study, study.study_name)
    # Optuna's own name of a study in memory is 45 letters of chance; in the pool's lists nobody would know it again.
    given = "memory" if study.study_name.startswith("no-name-") else study.study_name
    return MirrorLink(study, f"{given}-{uuid.uuid4().hex[:6]}", pool.storage)


class _Bar:
    """Optuna's own progress bar look, by the tqdm that Optuna brings."""

    def __init__(self, total: int | None) -> None:
        from tqdm.auto import tqdm

        bar: Any = tqdm
        self._bar = bar(total=total)

    def show(self, finished: int) -> None:
        self._bar.update(finished - self._bar.n)

    def close(self) -> None:
        self._bar.close()
