"""Optuna's own storage tests, over the storage, each database, and over the worker's view of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from optuna.storages import BaseStorage
from optuna.testing.pytest_storages import StorageTestCase

from vrampool.storage import WorkerView, open_storage


class TestStorageConforms(StorageTestCase):
    @pytest.fixture
    def storage(self, ready_url: str) -> Iterator[BaseStorage]:
        opened = open_storage(ready_url, create_schema=False)
        yield opened
        opened.close()


class TestWorkerViewConforms(StorageTestCase):
    """It sees its own writes at once, and these tests write through it alone."""

    @pytest.fixture
    def storage(self, ready_sqlite_url: str) -> Iterator[BaseStorage]:
        opened = open_storage(ready_sqlite_url, create_schema=False)
        yield WorkerView(opened)
        opened.close()
