"""Submissions, bundles and points: written once, moved on by one."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import optuna
import pytest
from support.racing import race

from vrampool.errors import MessageError
from vrampool.storage import Catalog, PoolStorage, SubmissionState, open_storage

MINIMIZE = [optuna.study.StudyDirection.MINIMIZE]
POINTS = 20


@pytest.fixture
def catalog(storage: PoolStorage) -> Catalog:
    return Catalog(storage)


def _reserve_all(barrier: Any, index: int, url: str) -> list[bool]:
    catalog = Catalog(open_storage(url, create_schema=False))
    won = []
    for point in range(POINTS):
        barrier.wait()
        won.append(catalog.reserve_point("study", f"{point:064x}", f"s{index}"))
    return won


def _stop_all(barrier: Any, index: int, url: str, ids: list[str]) -> list[bool]:
    catalog = Catalog(open_storage(url, create_schema=False))
    won = []
    for submission_id in ids:
        barrier.wait()
        state = SubmissionState.STOPPING if index % 2 else SubmissionState.CANCELLING
        won.append(catalog.set_submission_state(submission_id, state, f"{index}", expected=(SubmissionState.OPEN,)))
    return won


def test_each_point_is_reserved_by_one_of_several_processes(storage: PoolStorage, ready_url: str) -> None:
    storage.close()
    results = race(4, _reserve_all, ready_url)
    assert [sum(one) for one in zip(*results, strict=True)] == [1] * POINTS


def test_a_submission_is_moved_on_by_one_of_several_processes(
    storage: PoolStorage, ready_url: str, catalog: Catalog
) -> None:
    ids = [f"s{number}" for number in range(10)]
    for submission_id in ids:
        catalog.add_submission(submission_id, "study", "{}")
    storage.close()
    results = race(4, _stop_all, ready_url, ids)
    assert [sum(one) for one in zip(*results, strict=True)] == [1] * len(ids)
    for position, row in enumerate(catalog.submissions()):
        winner = [result[position] for result in results].index(True)
        assert row.reason == str(winner)
        assert row.state == (SubmissionState.STOPPING if winner % 2 else SubmissionState.CANCELLING)


def test_the_owner_of_a_point_may_ask_again(catalog: Catalog) -> None:
    """It may have died between reserving the point and creating its trial."""
    assert catalog.reserve_point("study", "a" * 64, "s1")
    assert catalog.reserve_point("study", "a" * 64, "s1")
    assert not catalog.reserve_point("study", "a" * 64, "s2")
    assert catalog.reserve_point("other study", "a" * 64, "s2")


def test_submissions_come_in_the_order_they_were_added(catalog: Catalog) -> None:
    for submission_id in ("b", "a", "c"):
        catalog.add_submission(submission_id, "study", f"spec of {submission_id}")
    catalog.add_submission("a", "study", "another spec")  # the same call again, after a fault
    rows = catalog.submissions()
    assert [row.id for row in rows] == ["b", "a", "c"]
    assert rows[1].spec_text == "spec of a"
    assert [row.sequence for row in rows] == sorted(row.sequence for row in rows)
    assert all(row.state is SubmissionState.OPEN and row.reason == "" for row in rows)


def test_a_state_is_set_only_from_an_expected_one(catalog: Catalog) -> None:
    catalog.add_submission("s1", "study", "{}")
    assert not catalog.set_submission_state("s1", SubmissionState.STOPPED, "x", expected=(SubmissionState.STOPPING,))
    assert catalog.set_submission_state("s1", SubmissionState.STOPPING, "x", expected=(SubmissionState.OPEN,))
    assert not catalog.set_submission_state("s1", SubmissionState.CANCELLING, "y", expected=(SubmissionState.OPEN,))
    assert catalog.set_submission_state("s1", SubmissionState.STOPPED, None, expected=None)
    assert not catalog.set_submission_state("nobody", SubmissionState.DONE, "", expected=None)
    row = catalog.submission("s1")
    assert row is not None and (row.state, row.reason) == (SubmissionState.STOPPED, "")
    assert row.state.final
    assert catalog.submission("nobody") is None
    assert catalog.submissions(states=(SubmissionState.OPEN, SubmissionState.STOPPING)) == []


def test_bundles_go_once_and_are_dropped_with_their_last_submission(catalog: Catalog) -> None:
    for sha in ("a" * 64, "b" * 64):
        catalog.put_bundle(sha, b"\x00\xff" * 1000, "signature")
        catalog.put_bundle(sha, b"other", "signed with another secret")
    assert catalog.get_bundle("a" * 64) == (b"\x00\xff" * 1000, "signed with another secret")
    assert catalog.get_bundle("c" * 64) is None
    catalog.add_submission("s1", "study", "{}", bundle_sha256="a" * 64)
    catalog.add_submission("s2", "study", "{}", bundle_sha256="a" * 64)
    catalog.add_submission("s3", "study", "{}")
    assert catalog.drop_bundles_of_ended() == 0, "just put: its submission may be about to be added"

    catalog.set_submission_state("s1", SubmissionState.DONE, "", expected=None)
    assert catalog.drop_bundles_of_ended(grace_s=0) == 1
    assert catalog.get_bundle("b" * 64) is None
    assert catalog.get_bundle("a" * 64) is not None
    catalog.set_submission_state("s2", SubmissionState.CANCELLED, "", expected=None)
    assert catalog.drop_bundles_of_ended(grace_s=0) == 1
    assert catalog.get_bundle("a" * 64) is None


def test_a_bundle_that_was_altered_beyond_reading_is_refused_and_not_tried_for_ever(tmp_path: Path) -> None:
    """SQLite keeps any type in any column; a worker that took this for a fault that passes would hang."""
    storage = open_storage(f"sqlite:///{tmp_path / 's.db'}", create_schema=True)
    catalog = Catalog(storage)
    catalog.put_bundle("a" * 64, b"\xff\xfe", "signature")
    with sqlite3.connect(tmp_path / "s.db") as connection:
        connection.execute("UPDATE vrampool_bundles SET body = CAST(x'ff00' AS TEXT)")
    connection.close()
    with pytest.raises(MessageError, match="cannot be read"):
        catalog.get_bundle("a" * 64)
    storage.close()


def test_a_new_study_under_an_old_name_starts_with_all_its_points(catalog: Catalog, storage: PoolStorage) -> None:
    study_id = storage.create_new_study(MINIMIZE, "study")
    assert catalog.reserve_point("study", "a" * 64, "s1")
    catalog.add_submission("s1", "study", "{}")

    storage.delete_study(study_id)

    assert catalog.submission("s1") is None
    assert catalog.reserve_point("study", "a" * 64, "s2")
    storage.create_new_study(MINIMIZE, "study")  # the row of s2 is of a study that is not there
    assert catalog.reserve_point("study", "a" * 64, "s3")
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        storage.create_new_study(MINIMIZE, "study")
    assert not catalog.reserve_point("study", "a" * 64, "s4")
