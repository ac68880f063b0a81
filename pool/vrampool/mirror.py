"""A user's own study and the pool's storage: followed in place where it lives there, else copied and mirrored back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from vrampool.handle import Handle, _in_optimize_loop
from vrampool.storage import url_of

if TYPE_CHECKING:
    from vrampool.pool import Pool

Callback = Callable[[optuna.Study, FrozenTrial], None]


class Link:
    """Follows a submission on behalf of the user's study, which lives in the pool's storage itself."""

    def __init__(self, study: optuna.Study, study_name: str) -> None:
        self.study = study
        self.study_name = study_name

    def take(self, trial: FrozenTrial) -> FrozenTrial:
        """Bring one finished root trial to the user's study; return it as found there."""
        return trial

    def follow(self, handle: Handle, callbacks: Sequence[Callback], show_progress_bar: bool) -> None:
        """Wait for the end; bring each finished root trial over and run the callbacks on it, one at a time."""
        bar = _Bar(handle.spec.n_trials) if show_progress_bar else None
        taken: set[int] = set()
        try:
            for progress in handle.watch():
                for trial in handle.finished_roots():
                    if trial.number in taken:
                        continue
                    taken.add(trial.number)
                    self._call(handle, callbacks, self.take(trial))
                if bar is not None:
                    bar.show(progress.finished)
            for trial in handle.finished_roots():
                if trial.number not in taken:
                    self._call(handle, callbacks, self.take(trial))
        except BaseException:
            handle.stop("the submitting process was interrupted")
            raise
        finally:
            if bar is not None:
                bar.close()

    def _call(self, handle: Handle, callbacks: Sequence[Callback], trial: FrozenTrial) -> None:
        for callback in callbacks:
            with _in_optimize_loop(self.study):
                callback(self.study, trial)
            if self.study._stop_flag:
                self.study._stop_flag = False
                handle.stop("stopped by a callback")


class MirrorLink(Link):
    """The same for a study in memory, or in another database: its trials are copied in and results copied back."""

    def __init__(self, study: optuna.Study, study_name: str, pool_study: optuna.Study) -> None:
        super().__init__(study, study_name)
        for trial in study.get_trials(deepcopy=True):
            if trial.state.is_finished() or trial.state == TrialState.WAITING:
                pool_study.add_trial(trial)
        for trial in study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            # It runs in the pool under a number of its own; here it would be run a second time by a later optimize().
            study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        for key, value in study.user_attrs.items():
            pool_study.set_user_attr(key, value)
        self._pool_study = pool_study

    def take(self, trial: FrozenTrial) -> FrozenTrial:
        self.study.add_trial(trial)
        for key, value in self._pool_study.user_attrs.items():
            if self.study.user_attrs.get(key) != value:
                self.study.set_user_attr(key, value)
        return self.study.get_trials(deepcopy=True)[-1]


def link(pool: Pool, study: optuna.Study) -> Link:
    """Return how `study` is followed: in place when it lives in the pool's database, else mirrored."""
    if (url := url_of(study)) is not None and url == url_of(pool.storage):
        return Link(study, study.study_name)
    # Optuna's own name of a study in memory is 45 letters of chance; in the pool's lists nobody would know it again.
    given = "memory" if study.study_name.startswith("no-name-") else study.study_name
    name = f"{given}-{uuid.uuid4().hex[:6]}"
    copy = optuna.create_study(study_name=name, storage=pool.storage, directions=study.directions)
    return MirrorLink(study, name, copy)


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
