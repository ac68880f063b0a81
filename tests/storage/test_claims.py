"""Claims and ends: one winner each, with everything that belongs to the change in the same write."""

from __future__ import annotations

import time
from typing import Any

import optuna
import pytest
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from support.racing import race

from vrampool.errors import StudyError
from vrampool.storage import (
    ATTEMPT,
    Mark,
    PoolStorage,
    adopt_waiting,
    attempt_of,
    cancel_waiting,
    cancelled_reason,
    claim,
    claimed_by,
    create_planned,
    create_retry,
    fail_lost,
    fail_running,
    lost_reason,
    mark_of,
    open_storage,
    prune_infeasible,
    record_facts,
    record_plan,
    requested_bytes,
    root_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

PROCESSES = 4
RACED = 40


@pytest.fixture
def study_id(storage: PoolStorage) -> int:
    return storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "raced")


def waiting(storage: PoolStorage, study_id: int, **mark: Any) -> int:
    return create_planned(storage, study_id, Mark("s1", **mark), request={"bytes": 7, "reason": "declared"})


def running(storage: PoolStorage, study_id: int) -> int:
    trial_id = waiting(storage, study_id)
    assert claim(storage, trial_id, "w1")
    return trial_id


# ---- races ------------------------------------------------------------------------------------------


def _claim_all(barrier: Any, index: int, url: str, trial_ids: list[int]) -> list[bool]:
    storage = open_storage(url, create_schema=False)
    won = []
    for trial_id in trial_ids:
        barrier.wait()
        won.append(claim(storage, trial_id, f"w{index}"))
    return won


def _fail_all(barrier: Any, index: int, url: str, trial_ids: list[int]) -> list[bool]:
    storage = open_storage(url, create_schema=False)
    won = []
    for trial_id in trial_ids:
        barrier.wait()
        won.append(fail_lost(storage, trial_id, f"seen by {index}"))
    return won


def _claim_or_cancel_all(barrier: Any, index: int, url: str, trial_ids: list[int]) -> list[bool]:
    storage = open_storage(url, create_schema=False)
    won = []
    for trial_id in trial_ids:
        barrier.wait()
        won.append(claim(storage, trial_id, "w") if index % 2 else cancel_waiting(storage, trial_id, "stopped"))
    return won


def _retry_all(barrier: Any, _index: int, url: str, trials: list[FrozenTrial], study_id: int) -> list[int]:
    storage = open_storage(url, create_schema=False)
    made = []
    for trial in trials:
        barrier.wait()
        made.append(create_retry(storage, study_id, trial, {"bytes": 1, "reason": "lost"}, "lost"))
    return made


def _pop_all_with_optunas_calls(barrier: Any, _index: int, url: str, trial_ids: list[int], ours: bool) -> list[bool]:
    storage = open_storage(url, create_schema=False).database if ours else RDBStorage(url)
    won = []
    for trial_id in trial_ids:
        barrier.wait()
        try:
            won.append(storage.set_trial_state_values(trial_id, TrialState.RUNNING))
        except StorageInternalError:  # "database is locked", which SQLite's defaults may say after 5 s
            won.append(False)
    return won


def winners(results: list[list[bool]]) -> list[int]:
    """Return for each trial how many processes say that they won it."""
    return [sum(one) for one in zip(*results, strict=True)]


def test_one_of_several_processes_claims_each_trial(storage: PoolStorage, ready_url: str, study_id: int) -> None:
    trial_ids = [waiting(storage, study_id) for _ in range(RACED)]
    storage.close()

    results = race(PROCESSES, _claim_all, ready_url, trial_ids)

    assert winners(results) == [1] * RACED
    for position, trial_id in enumerate(trial_ids):
        trial = storage.get_trial(trial_id)
        assert trial.state == TrialState.RUNNING
        assert results[int(str(claimed_by(trial))[1:])][position], "the claim on the trial is the winner's"


def test_one_of_several_processes_fails_each_lost_trial(storage: PoolStorage, ready_url: str, study_id: int) -> None:
    trial_ids = [running(storage, study_id) for _ in range(RACED)]
    storage.close()

    results = race(PROCESSES, _fail_all, ready_url, trial_ids)

    assert winners(results) == [1] * RACED
    for position, trial_id in enumerate(trial_ids):
        winner = [result[position] for result in results].index(True)
        assert lost_reason(storage.get_trial(trial_id)) == f"seen by {winner}"


def test_a_trial_is_claimed_or_cancelled_never_both(storage: PoolStorage, ready_url: str, study_id: int) -> None:
    trial_ids = [waiting(storage, study_id) for _ in range(RACED)]
    storage.close()

    results = race(PROCESSES, _claim_or_cancel_all, ready_url, trial_ids)

    assert winners(results) == [1] * RACED
    for trial_id in trial_ids:
        trial = storage.get_trial(trial_id)
        claimed, cancelled = claimed_by(trial) is not None, cancelled_reason(trial) is not None
        assert (trial.state, claimed, cancelled) in (
            (TrialState.RUNNING, True, False),
            (TrialState.FAIL, False, True),
        )


def test_a_lost_trial_is_retried_once_however_many_ask(storage: PoolStorage, ready_url: str, study_id: int) -> None:
    trials = []
    for _ in range(RACED // 2):
        trial_id = running(storage, study_id)
        assert fail_lost(storage, trial_id, "gone")
        trials.append(storage.get_trial(trial_id))
    storage.close()

    results = race(PROCESSES, _retry_all, ready_url, trials, study_id)

    assert all(len(set(ids)) == 1 for ids in zip(*results, strict=True))
    everything = storage.get_all_trials(study_id)
    assert len(everything) == RACED, "one new trial for each lost one"
    assert [trial.number for trial in everything] == list(range(RACED))


def test_optunas_own_pop_has_one_winner_on_this_storage(sqlite_url: str) -> None:
    """`study.ask()` of a user on the same study pops waiting trials by Optuna's own call: that is mended too."""
    storage = open_storage(sqlite_url, create_schema=True)
    study_id = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE])
    trial_ids = [storage.create_new_trial(study_id, create_trial(state=TrialState.WAITING)) for _ in range(RACED)]
    storage.close()

    results = race(PROCESSES, _pop_all_with_optunas_calls, sqlite_url, trial_ids, True)

    assert winners(results) == [1] * RACED


def test_the_same_race_is_lost_with_optunas_default_sqlite_storage(sqlite_url: str) -> None:
    """Why this storage exists. If Optuna ever mends its own, this test says so."""
    storage = RDBStorage(sqlite_url)
    study_id = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE])
    for _ in range(10):
        trial_ids = [storage.create_new_trial(study_id, create_trial(state=TrialState.WAITING)) for _ in range(20)]
        storage.engine.dispose()
        if max(winners(race(PROCESSES, _pop_all_with_optunas_calls, sqlite_url, trial_ids, False))) > 1:
            return
    pytest.fail("200 races and never two winners: is Optuna's default storage safe now?")


# ---- claiming ---------------------------------------------------------------------------------------


def test_a_claim_stamps_the_true_start_and_names_the_worker(storage: PoolStorage, study_id: int) -> None:
    trial_id = waiting(storage, study_id)
    assert storage.get_trial(trial_id).datetime_start is None

    before = time.time()
    assert claim(storage, trial_id, "host-1")

    trial = storage.get_trial(trial_id)
    assert trial.state == TrialState.RUNNING
    assert trial.datetime_start is not None and before - 1 <= trial.datetime_start.timestamp() <= time.time() + 1
    assert claimed_by(trial) == "host-1"


def test_a_second_delivery_to_the_winner_itself_is_refused(storage: PoolStorage, study_id: int) -> None:
    trial_id = waiting(storage, study_id)
    assert claim(storage, trial_id, "w1")
    assert not claim(storage, trial_id, "w1")
    assert not claim(storage, trial_id, "w1", at_s=12.0)


def test_a_claim_whose_answer_got_lost_is_recognised_when_it_is_repeated(storage: PoolStorage, study_id: int) -> None:
    trial_id = waiting(storage, study_id)
    assert claim(storage, trial_id, "w1", at_s=1234.5)
    assert claim(storage, trial_id, "w1", at_s=1234.5)
    assert not claim(storage, trial_id, "w2", at_s=1234.5)


def test_a_finished_trial_cannot_be_claimed(storage: PoolStorage, study_id: int) -> None:
    trial_id = running(storage, study_id)
    storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [1.0])
    assert not claim(storage, trial_id, "w2")
    assert claimed_by(storage.get_trial(trial_id)) == "w1"


def test_a_foreign_storage_is_refused(tmp_path: Any) -> None:
    with pytest.raises(StudyError, match="open_storage"):
        claim(RDBStorage(f"sqlite:///{tmp_path}/x.db"), 1, "w1")


# ---- ending -----------------------------------------------------------------------------------------


def test_a_trial_that_somebody_else_popped_is_not_failed(storage: PoolStorage, study_id: int) -> None:
    """Failing it would crash that process's own optimize()."""
    trial_id = waiting(storage, study_id)
    storage.set_trial_state_values(trial_id, TrialState.RUNNING)  # as `study.ask` of another process does
    assert not fail_lost(storage, trial_id, "gone")
    assert storage.get_trial(trial_id).state == TrialState.RUNNING


def test_a_claimed_trial_is_not_cancelled(storage: PoolStorage, study_id: int) -> None:
    trial_id = running(storage, study_id)
    assert not cancel_waiting(storage, trial_id, "stopped")
    trial = storage.get_trial(trial_id)
    assert trial.state == TrialState.RUNNING and cancelled_reason(trial) is None


def test_a_late_worker_can_neither_write_nor_tell(storage: PoolStorage, study_id: int) -> None:
    trial_id = running(storage, study_id)
    assert fail_lost(storage, trial_id, "gone")
    before = storage.get_trial(trial_id)

    with pytest.raises(UpdateFinishedTrialError):
        record_facts(storage, trial_id, {ATTEMPT: {"end": "complete"}})
    assert not fail_running(storage, trial_id, {ATTEMPT: {"end": "crashed"}})
    assert not prune_infeasible(storage, trial_id, 1.0)
    with pytest.raises(UpdateFinishedTrialError):
        storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [1.0])

    assert storage.get_trial(trial_id) == before


def test_an_infeasible_trial_is_pruned_without_a_value_and_says_by_how_much(
    storage: PoolStorage, study_id: int
) -> None:
    trial_id = running(storage, study_id)
    storage.set_trial_intermediate_value(trial_id, 0, 3.5)

    assert prune_infeasible(storage, trial_id, 2.25, {ATTEMPT: {"end": "infeasible"}})

    trial = storage.get_trial(trial_id)
    assert trial.state == TrialState.PRUNED
    assert trial.values is None, "the last report must not become its value"
    assert trial.constraints == {"vrampool:over_gib": 2.25}
    facts = attempt_of(trial)
    assert facts is not None and facts.end == "infeasible"
    assert trial.datetime_complete is not None


def test_the_memory_of_a_trial_that_fitted_is_a_fact_and_no_constraint(storage: PoolStorage, study_id: int) -> None:
    trial_id = running(storage, study_id)
    record_facts(storage, trial_id, {ATTEMPT: {"end": "complete", "peak_bytes": 5, "over_gib": -3.5}})
    trial = storage.get_trial(trial_id)
    assert trial.constraints == {}
    facts = attempt_of(trial)
    assert facts is not None and (facts.peak_bytes, facts.over_gib) == (5, -3.5)


def test_values_of_every_kind_are_stored_as_optuna_stores_them(storage: PoolStorage, study_id: int) -> None:
    for value in (1.5, float("inf"), float("-inf")):
        trial_id = running(storage, study_id)
        assert storage.move_trial(trial_id, TrialState.RUNNING, TrialState.COMPLETE, values=[value])
        trial = storage.get_trial(trial_id)
        assert (trial.state, trial.values) == (TrialState.COMPLETE, [value])
        trial._validate()


# ---- creating ---------------------------------------------------------------------------------------


def test_trials_of_ours_and_of_optuna_are_numbered_as_one_row(storage: PoolStorage, study_id: int) -> None:
    ids = [waiting(storage, study_id), storage.create_new_trial(study_id), waiting(storage, study_id)]
    assert [storage.get_trial(trial_id).number for trial_id in ids] == [0, 1, 2]
    other = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE])
    assert storage.get_trial(waiting(storage, other)).number == 0


def test_creating_in_a_study_that_is_not_there_raises(storage: PoolStorage, study_id: int) -> None:
    with pytest.raises(KeyError):
        waiting(storage, study_id + 1)


def test_a_plan_and_a_request_are_written_together(storage: PoolStorage, study_id: int) -> None:
    trial_id = create_planned(storage, study_id, Mark("s1", point=3))
    record_plan(storage, trial_id, {"x": [0.5, "{}"]}, {"bytes": None, "reason": "unknown study"})
    trial = storage.get_trial(trial_id)
    assert trial.user_attrs["vrampool:plan"] == {"x": [0.5, "{}"]}
    assert trial.user_attrs["vrampool:request"] == {"bytes": None, "reason": "unknown study"}
    assert requested_bytes(trial) is None
    mark = mark_of(trial)
    assert mark is not None and mark.point == 3


def test_a_users_own_waiting_trial_is_adopted_while_it_waits(storage: PoolStorage, study_id: int) -> None:
    study = optuna.load_study(study_name="raced", storage=storage)
    study.enqueue_trial({"x": 1.0})
    trial_id = study.trials[0]._trial_id

    assert adopt_waiting(storage, trial_id, Mark("s1"), {"bytes": 5, "reason": "declared"})

    trial = storage.get_trial(trial_id)
    assert mark_of(trial) == Mark("s1") and requested_bytes(trial) == 5
    assert trial.state == TrialState.WAITING and trial.system_attrs["fixed_params"] == {"x": 1.0}
    assert claim(storage, trial_id, "w1")
    assert not adopt_waiting(storage, trial_id, Mark("s2"))


def test_a_retry_keeps_what_was_sampled_and_tells_its_lineage(storage: PoolStorage, study_id: int) -> None:
    first = create_planned(storage, study_id, Mark("s1"), plan={"x": [0.5, "{}"]}, request={"bytes": 7, "reason": "r"})
    assert claim(storage, first, "w1")
    storage.get_all_trials(study_id)  # Optuna's cache sets parameters only of trials it has seen
    storage.set_trial_param(first, "x", 0.5, optuna.distributions.FloatDistribution(0, 1))
    storage.set_trial_system_attr(first, "grid_id", 11)
    storage.set_trial_system_attr(first, "constraints:mine", 1.0)
    storage.set_trial_system_attr(first, "completed_rung_0", 0.1)
    storage.set_trial_user_attr(first, "note", "n")
    storage.set_trial_intermediate_value(first, 0, 9.0)
    assert fail_lost(storage, first, "gone")

    second = create_retry(storage, study_id, storage.get_trial(first), {"bytes": 9}, "worker gone")
    assert claim(storage, second, "w2")
    assert fail_lost(storage, second, "gone too")
    third = create_retry(storage, study_id, storage.get_trial(second), {"bytes": 9}, "worker gone")

    trial = storage.get_trial(third)
    assert trial.state == TrialState.WAITING
    assert mark_of(trial) == Mark("s1", root=0, retry_of=1, attempt=3)
    assert root_of(trial) == 0
    assert trial.system_attrs == {
        "grid_id": 11,
        "fixed_params": {"x": 0.5},
        "failed_trial": 0,
        "retry_history": [0, 1],
    }
    assert trial.user_attrs["note"] == "n"
    assert trial.user_attrs["vrampool:plan"] == {"x": [0.5, "{}"]}
    assert trial.user_attrs["vrampool:request"] == {"bytes": 9, "reason": "worker gone"}
    assert trial.intermediate_values == {} and claimed_by(trial) is None and lost_reason(trial) is None
    assert optuna.storages.RetryHeartbeatStaleTrialCallback.retry_history(trial) == [0, 1]


def test_a_trial_that_is_not_ours_is_not_retried(storage: PoolStorage, study_id: int) -> None:
    trial = storage.get_trial(storage.create_new_trial(study_id))
    with pytest.raises(StudyError, match="not made by this pool"):
        create_retry(storage, study_id, trial, {"bytes": 1}, "lost")
