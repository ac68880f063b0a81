"""Nothing starts after a stop, however the processes' looks at the storage fall between each other's writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import optuna
import pytest
from optuna.samplers import BruteForceSampler, GridSampler
from optuna.trial import TrialState
from parity import objectives
from support.stepped_pool import SteppedPool

Stepped = Callable[..., AbstractContextManager[SteppedPool]]
COMPLETE, FAIL, RUNNING, WAITING = TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


def states(study: optuna.Study) -> list[TrialState]:
    return [trial.state for trial in study.trials]


def test_the_trial_that_stops_the_study_is_the_last(stepped: Stepped) -> None:
    with stepped() as pool:
        handle = pool.run(objectives.stop_at_2, 100)
        assert states(handle.study) == [COMPLETE] * 3
        assert handle.state == "stopped"


def test_a_trial_that_waits_when_another_stops_the_study_is_not_started(stepped: Stepped) -> None:
    """A27: no worker starts it, though the coordinator has not looked yet and its job is still in the queue."""
    with stepped(workers=2) as pool:
        handle = pool.submit(lambda trial: trial.study.stop() or 1.0, 10)
        for worker in pool.workers:
            worker.tell_registry()
        pool.coordinator.turn()
        assert states(handle.study) == [WAITING] * 2 and len(pool.pool.queue()) == 2
        pool.start_on(pool.workers[0])
        assert states(handle.study) == [RUNNING, WAITING]
        assert pool.start_on(pool.workers[1]) is None
        pool.drive(handle)
        assert states(handle.study) == [COMPLETE, FAIL]
        assert "study.stop()" in handle.study.trials[1].user_attrs["vrampool:cancelled"]
        assert pool.pool.queue() == []


@pytest.mark.parametrize(
    ("objective", "sampler", "points"),
    [
        (objectives.stop_at_2, None, 3),
        (objectives.grid, lambda: GridSampler({"x": [1, 2, 3], "y": [1, 2]}, seed=1), 6),
        (objectives.tree, lambda: BruteForceSampler(seed=1), 5),
    ],
    ids=["objective", "grid", "brute force"],
)
def test_whoever_sees_the_last_trial_finished_sees_the_stop_too(
    stepped: Stepped, monkeypatch: pytest.MonkeyPatch, objective: Any, sampler: Any, points: int
) -> None:
    """The trial ends just between two reads of the coordinator: the next trial would be one too many."""
    with stepped() as pool:
        handle = pool.submit(objective, 50, sampler=sampler() if sampler is not None else None)
        for _ in range(points - 1):
            pool.turn()
        pool.workers[0].tell_registry()
        pool.coordinator.turn()
        last = pool.start_on(pool.workers[0])
        assert last is not None and last.number == points - 1
        between = Between(pool, monkeypatch)
        pool.coordinator.turn()
        assert between.settled
        pool.drive(handle)
        assert states(handle.study) == [COMPLETE] * points


def test_the_last_points_of_a_grid_end_at_the_same_moment_on_two_workers(stepped: Stepped) -> None:
    """The second one must not take what it has read of the first a moment ago for the truth."""
    with stepped(workers=2) as pool:
        sampler = GridSampler({"x": [1], "y": [1, 2]}, seed=1)
        handle = pool.submit(lambda trial: len(trial.study.trials) + objectives.grid(trial), 10, sampler=sampler)
        for worker in pool.workers:
            worker.tell_registry()
        pool.coordinator.turn()
        for worker in pool.workers:
            assert pool.start_on(worker) is not None
        for worker in pool.workers:
            worker.settle(worker.running[0])
        assert handle.state == "stopping"
        pool.drive(handle)
        assert states(handle.study) == [COMPLETE] * 2


class Between:
    """Ends the running trial after the first of the coordinator's reads, whichever that is."""

    def __init__(self, pool: SteppedPool, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pool = pool
        self.settled = False
        for owner, name in ((pool.coordinator._catalog, "submissions"), (pool.coordinator._storage, "get_all_trials")):
            monkeypatch.setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            found = read(*args, **keywords)
            if not self.settled:
                self.settled = True
                (worker,) = self._pool.workers
                worker.settle(worker.running[0])
            return found

        return call


def test_a_timeout_cancels_what_waits_and_waits_for_what_runs(stepped: Stepped) -> None:
    with stepped(workers=2) as pool:
        handle = pool.submit(objectives.draw, timeout=1000.0)
        for worker in pool.workers:
            worker.tell_registry()
        pool.coordinator.turn()
        pool.start_on(pool.workers[0])
        pool.let_time_out(handle)
        pool.coordinator.turn()
        assert states(handle.study) == [RUNNING, FAIL] and handle.state == "stopping"
        pool.drive(handle)
        assert states(handle.study) == [COMPLETE, FAIL]
        assert handle.state == "stopped" and handle.reason == "timeout 1000 s"


def test_a_sampler_that_raises_ends_its_submission_and_no_other(stepped: Stepped) -> None:
    """The trial that it was asked for is there already, without a plan: it is cancelled like one that waits."""
    with stepped(slots=2) as pool:
        pool.run(objectives.draw, 2, study_name="b")
        broken = pool.submit(objectives.draw, 4, study_name="b", sampler="parity.samplers:Broken")
        good = pool.submit(objectives.draw, 4)
        pool.drive(broken, good)
        assert broken.state == "failed" and "sampler raised ZeroDivisionError: no points today" in broken.reason
        assert [trial.state for trial in broken.trials] == [FAIL] and broken.finished_roots() == []
        assert states(good.study) == [COMPLETE] * 4


def test_a_lost_trial_is_not_tried_again_after_a_stop(stepped: Stepped) -> None:
    from vrampool.storage import fail_lost

    with stepped() as pool:
        handle = pool.submit(objectives.draw, 5)
        pool.workers[0].tell_registry()
        pool.coordinator.turn()
        pool.start_on(pool.workers[0])
        handle.stop()
        fail_lost(pool.pool.storage, handle.trials[0]._trial_id, "its worker went away")
        pool.workers[0].running.clear()
        pool.drive(handle)
        assert states(handle.study) == [FAIL] and handle.state == "stopped"
