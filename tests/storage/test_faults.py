"""A database that is locked, full of connections or cut: calls wait, or raise what may be repeated."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator

import optuna
import pytest
import sqlalchemy as sa
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from support.postgres import PostgresServer

from vrampool.errors import UnreachableError
from vrampool.storage import (
    Catalog,
    Mark,
    PoolStorage,
    TransientStorageError,
    claim,
    create_planned,
    is_fenced,
    is_transient,
    keep_trying,
    open_storage,
)

MINIMIZE = [optuna.study.StudyDirection.MINIMIZE]


@pytest.fixture
def impatient(sqlite_url: str) -> Iterator[PoolStorage]:
    storage = open_storage(sqlite_url, create_schema=True, busy_timeout_s=0.05)
    yield storage
    storage.close()


@pytest.fixture
def holder(sqlite_url: str, impatient: PoolStorage) -> Iterator[sqlite3.Connection]:
    """A connection of somebody else's that can hold the file's write lock."""
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    yield connection
    connection.close()


CALLS: list[Callable[[PoolStorage, int, int], object]] = [
    lambda storage, study_id, trial_id: claim(storage, trial_id, "w1"),
    lambda storage, study_id, trial_id: storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [1.0]),
    lambda storage, study_id, trial_id: storage.set_trial_user_attr(trial_id, "k", 1),
    lambda storage, study_id, trial_id: create_planned(storage, study_id, Mark("s1")),
    lambda storage, study_id, trial_id: storage.create_new_study(MINIMIZE),
    lambda storage, study_id, trial_id: Catalog(storage).add_submission("s1", "a", "{}"),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_locked_file_is_a_fault_that_passes(
    call: Callable[[PoolStorage, int, int], object], impatient: PoolStorage, holder: sqlite3.Connection
) -> None:
    study_id = impatient.create_new_study(MINIMIZE)
    trial_id = create_planned(impatient, study_id, Mark("s1"))
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(TransientStorageError, match="database is locked by another process") as caught:
        call(impatient, study_id, trial_id)
    assert isinstance(caught.value, StorageInternalError) and isinstance(caught.value, UnreachableError)
    holder.rollback()
    call(impatient, study_id, trial_id)


def test_a_claim_waits_for_a_lock_that_goes_away(sqlite_url: str, holder: sqlite3.Connection) -> None:
    storage = open_storage(sqlite_url, create_schema=False, busy_timeout_s=20)
    trial_id = create_planned(storage, storage.create_new_study(MINIMIZE), Mark("s1"))
    holder.execute("BEGIN EXCLUSIVE")
    threading.Timer(0.3, holder.rollback).start()
    assert claim(storage, trial_id, "w1")
    storage.close()


def test_a_write_is_repeated_until_the_fault_has_passed(impatient: PoolStorage, holder: sqlite3.Connection) -> None:
    trial_id = create_planned(impatient, impatient.create_new_study(MINIMIZE), Mark("s1"))
    assert claim(impatient, trial_id, "w1")
    holder.execute("BEGIN EXCLUSIVE")
    pauses: list[float] = []

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 3:
            holder.rollback()
        return True

    keep_trying(lambda: impatient.set_trial_state_values(trial_id, TrialState.COMPLETE, [1.0]), wait=wait)

    assert impatient.get_trial(trial_id).value == 1.0
    assert pauses == [0.1, 0.2, 0.4]


def test_whoever_waits_may_give_up(impatient: PoolStorage, holder: sqlite3.Connection) -> None:
    study_id = impatient.create_new_study(MINIMIZE)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(TransientStorageError):
        keep_trying(lambda: impatient.set_study_user_attr(study_id, "k", 1), wait=lambda seconds: False)


def test_a_server_without_a_free_connection_is_told_as_that(postgres_server: PostgresServer, postgres_url: str) -> None:
    """Optuna would speak of data that exceed a maximum length."""
    url = sa.make_url(postgres_url)
    postgres_server.execute("postgres", "CREATE ROLE worker LOGIN")  # a superuser is under no limit
    postgres_server.execute(str(url.database), "GRANT ALL ON SCHEMA public TO worker")
    storage = open_storage(url.set(username="worker").render_as_string(), create_schema=True)
    study_id = storage.create_new_study(MINIMIZE)
    storage.close()

    postgres_server.execute("postgres", "ALTER ROLE worker CONNECTION LIMIT 0")
    with pytest.raises(TransientStorageError, match=r"too many connections.*raise max_connections"):
        storage.get_all_trials(study_id)

    postgres_server.execute("postgres", "ALTER ROLE worker CONNECTION LIMIT -1")
    assert storage.get_all_trials(study_id) == []
    storage.close()


def test_a_row_that_somebody_holds_is_not_waited_for_for_ever(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """A process may be frozen between two statements of a transaction."""
    storage = open_storage(postgres_url, create_schema=True, busy_timeout_s=0.1)
    study_id = storage.create_new_study(MINIMIZE)
    holder = postgres_server.connect(str(sa.make_url(postgres_url).database))
    holder.execute("SELECT * FROM studies FOR UPDATE")
    with pytest.raises(TransientStorageError, match="lock timeout"):
        create_planned(storage, study_id, Mark("s1"))
    holder.close()
    create_planned(storage, study_id, Mark("s1"))
    storage.close()


def test_a_restarted_server_costs_one_repeat_at_most(postgres_url: str, postgres_server: PostgresServer) -> None:
    storage = open_storage(postgres_url, create_schema=True)
    study_id = storage.create_new_study(MINIMIZE)
    postgres_server.stop()
    with pytest.raises(TransientStorageError):
        storage.set_study_user_attr(study_id, "k", 1)
    postgres_server.start()
    storage.set_study_user_attr(study_id, "k", 1)
    assert storage.get_study_user_attrs(study_id) == {"k": 1}
    storage.close()


def test_a_standby_that_refuses_writes_is_waited_for(postgres_url: str, postgres_server: PostgresServer) -> None:
    """Until it takes over. What a trial has given would be lost otherwise."""
    storage = open_storage(postgres_url, create_schema=True)
    study_id = storage.create_new_study(MINIMIZE)
    database = sa.make_url(postgres_url).database
    storage.close()
    postgres_server.execute("postgres", f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with pytest.raises(TransientStorageError, match="this is a standby"):
        storage.set_study_user_attr(study_id, "k", 1)
    postgres_server.execute("postgres", f"ALTER DATABASE {database} RESET default_transaction_read_only")
    storage.close()
    storage.set_study_user_attr(study_id, "k", 1)
    assert storage.get_study_user_attrs(study_id) == {"k": 1}
    storage.close()


def test_wrong_data_are_no_fault_that_passes(storage: PoolStorage) -> None:
    study_id = storage.create_new_study(MINIMIZE, "a")
    with pytest.raises(KeyError):
        storage.get_trial(123)
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        storage.create_new_study(MINIMIZE, "a")
    with pytest.raises(TypeError):
        storage.set_study_user_attr(study_id, "k", object())
    assert not is_transient(ValueError()) and not is_transient(StorageInternalError())


def test_a_tell_that_came_too_late_is_recognised(storage: PoolStorage) -> None:
    study = optuna.create_study(storage=storage)
    trial = study.ask()
    storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
    with pytest.raises(ValueError) as caught:
        study.tell(trial, 1.0)
    assert is_fenced(caught.value)
    with pytest.raises(ValueError) as caught:
        study.tell(99, 1.0)
    assert not is_fenced(caught.value)
