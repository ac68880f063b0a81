"""How many trials a submission makes, and which: with many workers, several submissions, points and totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from support.stepped_pool import SteppedPool

from vrampool import Handle
from vrampool.errors import InputError

Stepped = Callable[..., AbstractContextManager[SteppedPool]]
COMPLETE = TrialState.COMPLETE
POINTS = [{"x": index / 10} for index in range(10)]


def draw(trial: Any) -> float:
    return float(trial.suggest_float("x", 0, 1))


def lasts_long(trial: optuna.trial.FrozenTrial) -> float:
    """Trials end in another order than they began."""
    return 1.0 + (trial.number * 7 % 5)


def xs(handle: Handle) -> list[float]:
    return sorted(trial.params["x"] for trial in handle.study.trials if trial.state == COMPLETE)


# ---- how many ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "slots"), [(8, 1), (2, 3), (1, 1)])
def test_n_trials_is_exact_whatever_the_number_of_workers(stepped: Stepped, workers: int, slots: int) -> None:
    """A24."""
    with stepped(workers=workers, slots=slots) as pool:
        handle = pool.run(draw, 20, lasts=lasts_long)
        assert [trial.state for trial in handle.study.trials] == [COMPLETE] * 20
        again = pool.run(draw, total=20, study_name=handle.study_name)
        assert again.state == "done" and len(again.study.trials) == 20, "a full study is not added to"


def test_n_trials_is_exact_while_workers_come_and_go(stepped: Stepped) -> None:
    """A24."""
    with stepped(workers=2, slots=2) as pool:
        handle = pool.submit(draw, 24)
        for turn in range(12):
            pool.turn(lasts_long)
            if turn % 3 == 0:
                pool.add_worker()
            if turn % 4 == 1:
                pool.remove_worker()
        pool.drive(handle, lasts=lasts_long)
        assert [trial.state for trial in handle.study.trials] == [COMPLETE] * 24


def test_a_total_is_filled_up_by_whoever_comes(stepped: Stepped) -> None:
    """What the user ran himself counts, and trials that failed by their own fault; what was cancelled does not."""
    with stepped(slots=4) as pool:
        pool.run(draw, 2, study_name="t")
        study = optuna.load_study(study_name="t", storage=pool.pool.storage)
        study.optimize(draw, n_trials=2)
        study.optimize(_fails, n_trials=1, catch=ValueError)
        failed = pool.run(_fails, 2, study_name="t")
        cancelled = pool.submit(draw, 3, study_name="t")
        pool.coordinator.turn()
        cancelled.cancel()
        pool.drive(cancelled)
        first, second = pool.submit(draw, total=12, study_name="t"), pool.submit(draw, total=12, study_name="t")
        pool.drive(first, second, lasts=lasts_long)
        assert len(failed.trials) == 2
        counted = [trial for trial in study.trials if "vrampool:cancelled" not in trial.user_attrs]
        assert len(counted) == 12
        assert Counter(trial.state for trial in counted) == {COMPLETE: 9, TrialState.FAIL: 3}


def test_a_total_leaves_others_what_they_owe_and_makes_what_they_leave(stepped: Stepped) -> None:
    with stepped(slots=4) as pool:
        adding = pool.submit(draw, 6, study_name="owed")
        filling = pool.submit(draw, total=8, study_name="owed")
        pool.drive(adding, filling, lasts=lasts_long)
        assert (len(adding.trials), len(filling.trials)) == (6, 2)
        stopped = pool.submit(draw, 6, study_name="left")
        pool.turn(lasts_long)
        filling = pool.submit(draw, total=8, study_name="left")
        pool.turn(lasts_long)
        stopped.stop()
        pool.drive(stopped, filling, lasts=lasts_long)
        assert len(stopped.trials) < 6 and len(filling.trials) == 8 - len(stopped.trials)


def test_trials_that_a_user_enqueued_are_taken_first_and_count(stepped: Stepped) -> None:
    with stepped(workers=4) as pool:
        study = optuna.create_study(study_name="e", storage=pool.pool.storage)
        for x in (0.25, 0.5, 0.75):
            study.enqueue_trial({"x": x})
        one, two = pool.submit(draw, 2, study_name="e"), pool.submit(draw, total=5, study_name="e")
        pool.drive(one, two)
        assert [trial.params["x"] for trial in study.trials[:3]] == [0.25, 0.5, 0.75]
        assert [trial.state for trial in study.trials] == [COMPLETE] * 5
        assert len(one.trials) == 2 and len(two.trials) == 3, "each is taken by one submission"
        for x in (0.1, 0.2):
            study.enqueue_trial({"x": x})
        pool.run(draw, total=7, study_name="e")
        assert [trial.params["x"] for trial in study.trials[5:]] == [0.1, 0.2], "also when there is no room for more"


def test_a_trial_enqueued_while_it_runs_is_taken_next(stepped: Stepped) -> None:
    with stepped() as pool:
        handle = pool.submit(draw, 4)
        pool.turn()
        handle.study.enqueue_trial({"x": 0.125})
        pool.drive(handle)
        assert 0.125 in xs(handle) and len(handle.study.trials) == 4


def test_no_more_run_at_once_than_was_asked_for(stepped: Stepped) -> None:
    with stepped(workers=4, slots=4) as pool:
        handle = pool.run(draw, 9, max_concurrent_trials=2, lasts=lasts_long)
        assert len(handle.study.trials) == 9 and pool.most_at_once == 2
        pool.run(draw, 20, lasts=lasts_long)
        assert pool.most_at_once == 16


def test_a_coordinator_that_died_is_followed_by_one_that_counts_right(stepped: Stepped) -> None:
    with stepped(slots=2) as pool:
        study = optuna.create_study(study_name="c", storage=pool.pool.storage)
        study.enqueue_trial({"x": 0.5})
        handle = pool.submit(draw, 10, study_name="c", points=POINTS[:2], skip_if_exists=True)
        for _ in range(4):
            pool.turn()
        pool.restart_coordinator()
        pool.drive(handle)
        assert [trial.state for trial in study.trials] == [COMPLETE] * 10
        assert Counter(xs(handle))[0.5] == 1 and Counter(xs(handle))[0.1] == 1


# ---- starting points ---------------------------------------------------------------------------------


def test_starting_points_come_first_in_order(stepped: Stepped) -> None:
    with stepped(slots=3) as pool:
        handle = pool.run(draw, 12, points=POINTS)
        assert [trial.params for trial in handle.study.trials[:10]] == POINTS
        assert len(handle.study.trials) == 12


def test_two_submitters_never_try_a_starting_point_twice(stepped: Stepped) -> None:
    """A25: at the same time, and a third time when all is done."""
    with stepped(workers=2, slots=2) as pool:
        asked: dict[str, Any] = {"total": 10, "points": POINTS, "skip_if_exists": True, "study_name": "S"}
        handles = [pool.submit(draw, **asked) for _ in range(2)]
        pool.drive(*handles, lasts=lasts_long)
        assert xs(handles[0]) == [point["x"] for point in POINTS]
        pool.drive(pool.submit(draw, **asked))
        assert len(handles[0].study.trials) == 10
        assert [len(handle.trials) > 0 for handle in handles] == [True, True], "they have raced"


def test_a_point_that_a_user_has_tried_is_left_out(stepped: Stepped) -> None:
    with stepped() as pool:
        study = optuna.create_study(study_name="u", storage=pool.pool.storage)
        study.enqueue_trial({"x": 0.5})
        study.optimize(draw, n_trials=1)
        handle = pool.run(draw, total=3, study_name="u", points=[{"x": 0.5}, {"x": 0.25}], skip_if_exists=True)
        assert Counter(xs(handle))[0.5] == 1 and 0.25 in xs(handle)


def test_without_the_flag_points_may_come_twice(stepped: Stepped) -> None:
    with stepped() as pool:
        for _ in range(2):
            handle = pool.run(draw, 1, study_name="d", points=[{"x": 0.5}])
        assert xs(handle) == [0.5, 0.5]


def test_a_point_that_was_cancelled_before_it_ran_is_tried_by_the_next(stepped: Stepped) -> None:
    with stepped() as pool:
        asked: dict[str, Any] = {"points": POINTS[:2], "skip_if_exists": True, "study_name": "r"}
        first = pool.submit(draw, 2, **asked)
        pool.workers[0].tell_registry()
        pool.coordinator.turn()
        first.stop("changed my mind")
        pool.drive(first)
        assert xs(first) == [] and first.state == "stopped"
        assert xs(pool.run(draw, 2, **asked)) == [0.0, 0.1]


def test_numpys_numbers_are_points_too_and_what_cannot_be_stored_is_refused(stepped: Stepped) -> None:
    numpy = pytest.importorskip("numpy")
    with stepped() as pool:
        assert xs(pool.run(draw, 1, points=[{"x": numpy.float32(0.5)}])) == [0.5]
        for wrong in ([{"x": object()}], [3], [{"x": numpy.zeros(2)}]):
            with pytest.raises(InputError, match="starting point"):
                pool.submit(draw, 1, points=wrong)


def _fails(trial: Any) -> float:
    raise ValueError("on purpose")
