"""One coordinator leads. One that stood still while another took over creates nothing and ends nothing any more."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna.trial import TrialState
from support.stepped_pool import stepped_pool

import vrampool.coordinator.tender
from vrampool.coordinator.leading import PATIENCE_S
from vrampool.errors import StaleLeaderError
from vrampool.queueing import connect
from vrampool.queueing.names import Names
from vrampool.storage import TransientStorageError, fail_lost, mark_of, open_storage


def nothing(trial):
    return 1.0


def test_a_coordinator_that_stood_still_creates_no_trial_too_many(valkey: str, tmp_path: Path):
    """It stands still after it has counted the trials, and before it creates the one that it found missing."""
    with stepped_pool(valkey, tmp_path) as pool:
        handle = pool.submit(nothing, 1)
        old = pool.coordinator
        old.turn()
        pool.workers[0].tell_registry()
        (tender,) = old._tenders.values()
        create = tender.create

        def stand_still_then_create():
            pool.restart_coordinator()
            pool.coordinator.turn()
            return create()

        tender.create = stand_still_then_create
        with pytest.raises(StaleLeaderError):
            old.turn()
        assert [trial.state for trial in handle.trials] == [TrialState.WAITING]
        pool.drive(handle)
        assert [trial.state for trial in handle.trials] == [TrialState.COMPLETE]


def test_it_fails_no_trial_by_what_it_read_before(valkey: str, tmp_path: Path):
    with stepped_pool(valkey, tmp_path) as pool:
        handle = pool.submit(nothing, 1)
        old = pool.coordinator
        pool.workers[0].tell_registry()
        old.turn()
        assert pool.workers[0].take() is not None
        pool.restart_coordinator()
        pool.coordinator.turn()
        (trial,) = handle.trials
        with pytest.raises(StaleLeaderError):
            fail_lost(old._storage, trial._trial_id, "its lease was gone a while ago")
        assert handle.trials[0].state == TrialState.RUNNING
        assert fail_lost(pool.coordinator._storage, trial._trial_id, "its lease is gone")


def test_a_retry_that_the_database_did_not_take_is_made_with_the_next_look(
    valkey: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Else the trial would never be over, and neither would its study."""
    with stepped_pool(valkey, tmp_path) as pool:
        handle = pool.submit(nothing, 1)
        pool.workers[0].tell_registry()
        pool.coordinator.turn()
        assert pool.workers[0].take() is not None
        fail_lost(open_storage(pool.settings.storage or "", create_schema=False), handle.trials[0]._trial_id, "gone")
        create_retry = vrampool.coordinator.tender.create_retry
        calls = []

        def locked_once(*args):
            calls.append(args)
            if len(calls) == 1:
                raise TransientStorageError("the database is locked")
            return create_retry(*args)

        monkeypatch.setattr(vrampool.coordinator.tender, "create_retry", locked_once)
        with pytest.raises(TransientStorageError):
            pool.coordinator.turn()
        pool.drive(handle)
        assert [trial.state for trial in handle.trials] == [TrialState.FAIL, TrialState.COMPLETE]
        mark = mark_of(handle.trials[1])
        assert mark is not None and mark.retry_of == 0


def test_a_leader_whose_storage_stays_silent_lets_another_one_lead_and_does_not_take_it_back(
    valkey: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It reaches Redis, so its lease would never run out."""
    with stepped_pool(valkey, tmp_path) as pool:
        assert pool.coordinator.turn()
        lead, other = pool.coordinator._lead, pool.start_coordinator()
        assert not lead.storage_is_silent(), "a hiccup is none"
        assert not other.turn()
        now_s = lead._clock() + PATIENCE_S
        monkeypatch.setattr(lead, "_clock", lambda: now_s)
        assert lead.storage_is_silent()

        def silent(**_: object) -> None:
            raise TransientStorageError("no route to host")

        monkeypatch.setattr(lead._catalog, "submissions", silent)
        with pytest.raises(TransientStorageError):
            pool.coordinator.turn()
        assert other.turn(), "nobody else could lead"
        monkeypatch.undo()
        assert not pool.coordinator.turn()
        other._lead.release()
        assert pool.coordinator.turn()


def test_the_leader_goes_on_when_another_one_wrote_into_the_storage_that_it_led(valkey: str, tmp_path: Path):
    """One that stood still between Redis and the storage, and sees only then that it leads no more."""
    with stepped_pool(valkey, tmp_path) as pool:
        handle = pool.submit(nothing, 1)
        late = pool.start_coordinator()
        pool.coordinator.turn()
        late._storage.database.lead(pool.settings.pool, "an epoch of before")
        pool.workers[0].tell_registry()
        with pytest.raises(StaleLeaderError):
            pool.coordinator.turn()
        pool.coordinator._lead.lost()  # what its loop does then
        leader = connect(valkey, role="test").get(Names(pool.settings.pool).leader)
        pool.drive(handle)
        assert [trial.state for trial in handle.trials] == [TrialState.COMPLETE]
        assert connect(valkey, role="test").get(Names(pool.settings.pool).leader) == leader
