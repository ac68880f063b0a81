"""Hosts whose clocks differ go by the database's."""

from __future__ import annotations

import time

import pytest

from vrampool.storage import Catalog, open_storage
from vrampool.storage.clock import COMPARED_S, StorageClock


def test_a_host_whose_clock_is_wrong_tells_the_database_s_time(
    ready_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(ready_postgres_url, create_schema=False)
    right_s = time.time()
    monkeypatch.setattr(time, "time", lambda: right_s - 3600)
    catalog = Catalog(storage)
    assert abs(catalog.now_s() - right_s) < 5
    catalog.add_submission("a", "s", "{}")
    (row,) = catalog.submissions()
    assert abs(row.created_at - right_s) < 5
    storage.close()


def test_the_database_is_asked_now_and_then(ready_postgres_url: str) -> None:
    storage = open_storage(ready_postgres_url, create_schema=False)
    now_s = 1000.0
    clock = StorageClock(storage.database, monotonic=lambda: now_s)
    first_s = clock.now_s()
    now_s += COMPARED_S
    assert clock.now_s() == first_s + COMPARED_S, "it was not asked again"
    now_s += 3600.0  # the monotonic clock stood still, or ran on, while the host slept
    assert abs(clock.now_s() - time.time()) < 5
    storage.close()
