"""Four trials at once: what holds in Optuna with `n_jobs=4` holds in a pool, and callbacks run where one waits."""

from __future__ import annotations

import datetime
import logging
import os
import threading
import time
from collections import Counter

import optuna
import pytest
from optuna.samplers import BruteForceSampler, GridSampler
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState
from parity import objectives
from support.pools import LivePool

from vrampool.errors import InputError, ObjectiveFailedError, StudyFailedError
from vrampool.storage import cancelled_reason

SLOTS = 4  #: of the shared pool
VRAM = "100MiB"
COMPLETE = TrialState.COMPLETE


def ran(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """The trials that somebody started; those that a stop took out of the queue are FAIL and say so."""
    return [trial for trial in study.trials if cancelled_reason(trial) is None]


def test_n_trials_is_exact(pool: LivePool) -> None:
    """A24, through real processes; with many more workers in `test_many_workers`."""
    study = optuna.create_study()
    pool.pool.optimize(study, objectives.draw, n_trials=13, vram=VRAM)
    assert [trial.state for trial in study.trials] == [COMPLETE] * 13
    assert [trial.number for trial in study.trials] == list(range(13))


def test_callbacks_run_here_one_at_a_time_and_once_for_each_trial(pool: LivePool) -> None:
    study = optuna.create_study()
    called = []

    def callback(got: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        assert got is study
        assert got.trials[trial.number] == trial, "its end is stored before the callback"
        called.append((trial.number, os.getpid(), threading.current_thread()))
        trial.user_attrs["mine"] = True

    pool.pool.optimize(study, objectives.process, n_trials=8, vram=VRAM, callbacks=[callback])
    assert sorted(number for number, _, _ in called) == list(range(8))
    assert {(pid, thread) for _, pid, thread in called} == {(os.getpid(), threading.main_thread())}
    assert not [trial for trial in study.trials if "mine" in trial.user_attrs], "a callback gets a copy"
    assert len({trial.user_attrs["pid"] for trial in study.trials} | {os.getpid()}) == 9


def test_a_callback_stops_the_study(pool: LivePool) -> None:
    """Trials that run finish, those that wait leave; nothing starts any more."""
    study = optuna.create_study()
    called = []

    def callback(got: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        called.append(trial.number)
        if len(called) == 3:
            got.stop()

    pool.pool.optimize(study, objectives.slow, n_trials=100, vram=VRAM, callbacks=[callback])
    finished = ran(study)
    assert {trial.state for trial in finished} == {COMPLETE}
    assert 3 <= len(finished) <= 3 + 2 * SLOTS
    assert sorted(called) == [trial.number for trial in finished], "also for those that finished after the stop"
    assert not study._stop_flag and not study._thread_local.in_optimize_loop


def test_max_trials_callback_stops_the_study(pool: LivePool) -> None:
    study = optuna.create_study()
    pool.pool.optimize(study, objectives.slow, vram=VRAM, callbacks=[MaxTrialsCallback(4, states=(COMPLETE,))])
    assert 4 <= len(ran(study)) <= 4 + 2 * SLOTS, "Optuna's own overshoots by the trials that run, too"


def test_an_exception_of_a_callback_ends_the_study_and_is_raised(pool: LivePool) -> None:
    study = optuna.create_study()

    def callback(got: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        raise ZeroDivisionError(f"of trial {trial.number}")

    with pytest.raises(ZeroDivisionError, match="of trial"):
        pool.pool.optimize(study, objectives.slow, n_trials=100, vram=VRAM, callbacks=[callback])
    finished = ran(study)
    assert {trial.state for trial in finished} == {COMPLETE}, "what ran has finished, and is here"
    assert 1 <= len(finished) <= 3 * SLOTS


def test_the_objective_stops_the_study(pool: LivePool) -> None:
    """A27."""
    handle = pool.run(objectives.stop_at_2, 100)
    trials = handle.study.trials
    assert (trials[2].state, trials[2].value) == (COMPLETE, 2.0)
    finished = ran(handle.study)
    assert {trial.state for trial in finished} == {COMPLETE} and len(finished) <= 3 + SLOTS
    asked_at = trials[2].datetime_complete
    assert asked_at is not None
    assert all(trial.datetime_start is not None and trial.datetime_start <= asked_at for trial in finished)
    assert handle.state == "stopped" and "study.stop()" in handle.reason
    assert {trial.state for trial in trials} <= {COMPLETE, TrialState.FAIL}, "none waits"


def test_a_timeout_lets_running_trials_finish_and_starts_no_other(pool: LivePool) -> None:
    study = optuna.create_study(storage=pool.pool.storage)
    began = datetime.datetime.now()
    at_s = time.monotonic()
    pool.pool.optimize(study, objectives.slow, timeout=1.5, vram=VRAM)
    took_s = time.monotonic() - at_s
    finished = ran(study)
    assert finished and {trial.state for trial in finished} == {COMPLETE}
    last = max(trial.datetime_start for trial in finished if trial.datetime_start is not None)
    assert (last - began).total_seconds() < 2.0
    assert 1.5 <= took_s < 10


def test_an_exception_lets_running_trials_finish_and_starts_no_other(pool: LivePool) -> None:
    study = optuna.create_study()
    with pytest.raises(ValueError, match="the second one") as caught:
        pool.pool.optimize(study, objectives.sometimes, n_trials=100, vram=VRAM)
    error = caught.value
    assert isinstance(error, ObjectiveFailedError)
    assert (error.type_name, error.trial_number) == ("builtins.ValueError", 1)
    assert "raise ValueError" in error.remote_traceback
    counts = Counter(trial.state for trial in ran(study))
    assert counts[TrialState.FAIL] == 1 and 1 <= counts[COMPLETE] <= 3 * SLOTS


@pytest.mark.parametrize("objective", [objectives.interrupted, objectives.leaving])
def test_ctrl_c_and_sys_exit_in_an_objective_fail_the_trial_and_are_told_as_a_failure(
    pool: LivePool, objective
) -> None:
    """Optuna raises them here, and leaves the trial of a SystemExit RUNNING. Neither is for this process."""
    study = optuna.create_study()
    with pytest.raises(ObjectiveFailedError) as caught:
        pool.pool.optimize(study, objective, n_trials=1, vram=VRAM)
    assert not isinstance(caught.value, (KeyboardInterrupt, SystemExit))
    assert [trial.state for trial in study.trials] == [TrialState.FAIL]


def test_optimize_is_not_entered_twice_for_one_study(pool: LivePool) -> None:
    study = optuna.create_study()

    def callback(got: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        for nested in (
            lambda: pool.pool.optimize(got, objectives.number, 1),
            lambda: got.optimize(objectives.number, 1),
        ):
            with pytest.raises(RuntimeError, match="Nested invocation"):
                nested()

    pool.pool.optimize(study, objectives.number, 1, vram=VRAM, callbacks=[callback])
    study.optimize(lambda trial: 1.0, n_trials=1)
    assert len(study.trials) == 2


def test_it_takes_what_optimize_takes(pool: LivePool, capfd: pytest.CaptureFixture[str]) -> None:
    """By place and by name; what a pool does not need too."""
    study = optuna.create_study()
    pool.pool.optimize(study, objectives.number, 2, 60, 2, (), None, True, True, vram=VRAM)
    pool.pool.optimize(
        study,
        objectives.number,
        n_trials=1,
        timeout=None,
        n_jobs=-1,
        catch=(),
        callbacks=(callback for callback in ()),
        gc_after_trial=True,
        show_progress_bar=False,
        vram=VRAM,
    )
    assert len(study.trials) == 3
    assert "2/2" in capfd.readouterr().err, "a progress bar"
    for wrong in ({"catch": (3,)}, {"catch": "ValueError"}, {"n_trials": 2.5}, {"n_trials": 1, "timeout": "soon"}):
        with pytest.raises((InputError, TypeError)):
            pool.pool.optimize(study, objectives.number, **wrong)
    assert len(study.trials) == 3


def test_it_says_what_optuna_says(pool: LivePool) -> None:
    """One line for each trial, by Optuna's own logger: its level and handlers hold."""
    lines: list[str] = []
    optuna.logging.set_verbosity(optuna.logging.INFO)
    handler = _Collecting(lines)
    optuna.logging.get_logger("optuna").addHandler(handler)
    try:
        study = optuna.create_study()
        pool.pool.optimize(study, objectives.prune, n_trials=4, n_jobs=1, vram=VRAM)
        pool.pool.optimize(study, objectives.odd_values, n_trials=1, n_jobs=1, vram=VRAM)
    finally:
        optuna.logging.get_logger("optuna").removeHandler(handler)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
    text = "\n".join(lines)
    assert "Trial 3 finished with value: 1.0" in text and "Best is trial 3" in text
    assert "Trial 1 pruned. no hope" in text
    assert "Trial 4 failed" in text and "of type list" in text


class _Collecting(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@pytest.mark.parametrize(
    ("objective", "sampler", "points"),
    [
        (objectives.grid, lambda: GridSampler({"x": [1, 2, 3], "y": [1, 2]}, seed=1), 6),
        (objectives.tree, lambda: BruteForceSampler(seed=1, avoid_premature_stop=True), 5),
    ],
)
def test_a_sampler_that_has_tried_everything_ends_the_study(pool: LivePool, objective, sampler, points: int) -> None:
    # BruteForce by default takes a branch that a running trial has only begun as done, with `n_jobs` too.
    study = optuna.create_study(sampler=sampler())
    pool.pool.optimize(study, objective, n_trials=50, vram=VRAM)
    finished = ran(study)
    assert len({tuple(sorted(trial.params.items())) for trial in finished}) == points
    assert len(finished) <= points + SLOTS, "as Optuna with as many at once"


def test_a_broken_sampler_fails_its_study_and_nothing_else(pool: LivePool) -> None:
    """It is the coordinator that asks it: the pool must survive whatever it does."""
    study = optuna.create_study(sampler=GridSampler({"other": [1, 2, 3]}))
    with pytest.raises(ValueError, match="not found in the given grid"):
        pool.pool.optimize(study, objectives.draw, n_trials=2, vram=VRAM)
    study = optuna.create_study()
    pool.pool.optimize(study, objectives.draw, n_trials=1, vram=VRAM)
    with pytest.raises(StudyFailedError, match="sampler raised ZeroDivisionError: no points today"):
        pool.pool.optimize(study, objectives.draw, n_trials=4, vram=VRAM, sampler="parity.samplers:Broken")
    assert {trial.state for trial in study.trials[1:]} == {TrialState.FAIL}
    pool.pool.optimize(study, objectives.draw, n_trials=1, vram=VRAM)
    assert study.trials[-1].state == COMPLETE


def test_several_submissions_work_on_one_study(pool: LivePool) -> None:
    """Each adds its own trials, calls its own callbacks and ends by itself."""
    called: list[list[int]] = [[], []]
    handles = [
        pool.submit(
            objectives.slow,
            count,
            study_name="shared",
            callbacks=[lambda _, trial, mine=mine: mine.append(trial.number)],
            sampler=optuna.samplers.TPESampler(seed=42),
        )
        for count, mine in zip((3, 5), called, strict=True)
    ]
    for handle in handles:
        handle.wait(60)
    numbers = [[trial.number for trial in handle.trials] for handle in handles]
    assert [len(found) for found in numbers] == [3, 5]
    assert sorted(numbers[0] + numbers[1]) == list(range(8))
    assert [sorted(mine) for mine in called] == numbers
    assert len({trial.params["x"] for trial in handles[0].study.trials}) == 8, (
        "the same seed, and never the same points"
    )


def test_ctrl_c_passes_at_once_and_leaves_nothing_running_here(pool: LivePool, tmp_path, monkeypatch) -> None:
    """A45, in this process: the study in memory is left in order, its trials end in the pool."""
    gate = tmp_path / "gate"
    study = optuna.create_study()
    study.enqueue_trial({"x": 0.5})
    name = None

    def interrupt(_: object) -> None:
        nonlocal name
        running = [item for device in pool.devices() for item in device.running]
        if running:
            name = running[0].study
            raise KeyboardInterrupt

    from vrampool.handle import Handle

    watch = Handle.watch

    def watched(self, timeout=None):
        for progress in watch(self, timeout):
            interrupt(progress)
            yield progress

    monkeypatch.setattr(Handle, "watch", watched)
    at_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pool.pool.optimize(study, objectives.wait_for_file, n_trials=3, vram=VRAM, env={"PARITY_GATE": str(gate)})
    assert time.monotonic() - at_s < 20
    assert {trial.state for trial in study.trials} == {TrialState.FAIL}, "nobody will bring their ends"
    monkeypatch.setattr(Handle, "watch", watch)
    gate.touch()
    assert name is not None
    handle = pool.pool.attach(name).wait(60)
    assert handle.state == "stopped"
    assert {trial.state for trial in ran(handle.study)} == {COMPLETE}, "what ran has finished in the pool"
