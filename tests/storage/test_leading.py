"""One coordinator creates and ends trials. Who led before and does not know it yet is refused by the storage itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import optuna
import pytest
from support.racing import race

from vrampool.errors import StaleLeaderError
from vrampool.storage import Mark, PoolStorage, claim, create_planned, fail_lost, open_storage

MINIMIZE = [optuna.study.StudyDirection.MINIMIZE]
MARK = Mark(submission="s1")


@pytest.fixture
def other(ready_url: str) -> Iterator[PoolStorage]:
    found = open_storage(ready_url, create_schema=False)
    yield found
    found.close()


def test_the_last_one_to_lead_creates_and_ends_trials(storage: PoolStorage, other: PoolStorage) -> None:
    study = storage.create_new_study(MINIMIZE, "study")
    storage.database.lead("pool", "first")
    trial = create_planned(storage, study, MARK)
    assert claim(other, trial, "worker")
    other.database.lead("pool", "second")
    with pytest.raises(StaleLeaderError):
        create_planned(storage, study, MARK)
    with pytest.raises(StaleLeaderError):
        fail_lost(storage, trial, "its lease was gone when it was read")
    create_planned(other, study, MARK)
    storage.database.lead("pool", "third")
    assert fail_lost(storage, trial, "its lease is gone")


def test_pools_that_share_a_database_do_not_lead_each_other(storage: PoolStorage, other: PoolStorage) -> None:
    study = storage.create_new_study(MINIMIZE, "study")
    storage.database.lead("one", "first")
    other.database.lead("another", "second")
    create_planned(storage, study, MARK)
    create_planned(other, study, MARK)


def test_who_never_led_is_not_asked(storage: PoolStorage, other: PoolStorage) -> None:
    """Workers claim and tell, and users enqueue, whoever leads."""
    study = storage.create_new_study(MINIMIZE, "study")
    storage.database.lead("pool", "first")
    trial = create_planned(other, study, MARK)
    assert claim(other, trial, "worker")


def _create_until_refused(barrier: Any, index: int, url: str, study: int) -> int:
    storage = open_storage(url, create_schema=False)
    if index == 0:
        storage.database.lead("pool", "old")
        barrier.wait()
        created = 0
        try:
            while True:
                create_planned(storage, study, MARK)
                created += 1
        except StaleLeaderError:
            barrier.wait()
            return created
    barrier.wait()
    while storage.get_n_trials(study) < 20:
        pass
    storage.database.lead("pool", "new")
    counted = storage.get_n_trials(study)
    barrier.wait()
    return counted


def test_nothing_is_created_behind_the_back_of_who_has_taken_the_lead(storage: PoolStorage, ready_url: str) -> None:
    """What the new leader counts is all there is: none is under way that was begun before."""
    study = storage.create_new_study(MINIMIZE, "study")
    created, counted = race(2, _create_until_refused, ready_url, study)
    assert created == counted == storage.get_n_trials(study)
