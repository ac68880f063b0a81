"""A31: an empty database that many use at the same moment, and workers that are there before anybody else."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import optuna
import pytest
from support.postgres import PostgresServer, postgres_server, postgres_url
from support.racing import race
from support.stepped_pool import SECRET, stand_in, stepped_pool

import vrampool
from vrampool.messages import Ticket
from vrampool.settings import load_settings
from vrampool.signing import Signer
from vrampool.storage import open_storage
from vrampool_worker.desk import NotOpened, StudyDesk

__all__ = ["PostgresServer", "postgres_server", "postgres_url"]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database."""
    return f"sqlite:///{tmp_path / 'new.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def submit_at_once(barrier: Any, index: int, redis: str, url: str, name: str) -> str:
    barrier.wait()
    pool = vrampool.Pool(redis=redis, storage=url, pool=name, secret=SECRET)
    handle = pool.submit(f"{stand_in.__code__.co_filename}:stand_in", 1, study_name="race", points=[{"x": index / 12}])
    return handle.id


def test_twelve_submitters_meet_an_empty_database(url: str, valkey: str) -> None:
    """Twelve successes, one study, each submission once."""
    name = f"pool-{uuid.uuid4().hex[:8]}"
    ids = race(12, submit_at_once, valkey, url, name)
    assert len(set(ids)) == 12
    storage = open_storage(url, create_schema=False)
    assert [study.study_name for study in storage.get_all_studies()] == ["race"]
    pool = vrampool.Pool(redis=valkey, storage=url, pool=name, secret=SECRET)
    assert sorted(handle.id for handle in pool.handles()) == sorted(ids)
    pool.close()
    storage.close()


def test_a_worker_that_was_first_waits_for_the_database(url: str) -> None:
    settings = load_settings({"storage": url, "redis": "redis://unused", "secret": SECRET}, env={})
    desk = StudyDesk(settings, Signer(SECRET.encode()), "w", lambda spec: None)
    connected = threading.Event()

    def connect() -> None:
        desk.connect()
        connected.set()

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    assert not connected.wait(0.5), "there is nothing to connect to"
    open_storage(url, create_schema=True).close()
    assert connected.wait(20)
    thread.join()
    opened = desk.open(Ticket("p", "s", "unknown", 0, 1, None))
    assert isinstance(opened, NotOpened) and "knows no submission" in opened.reason


def test_a_pool_on_postgresql_runs_a_study(postgres_url: str, valkey: str, tmp_path: Path) -> None:
    with stepped_pool(valkey, tmp_path, workers=2, slots=2, storage=postgres_url) as pool:
        study = optuna.create_study(study_name="pg", storage=pool.pool.storage)
        study.enqueue_trial({"x": 0.5})
        handle = pool.run(lambda trial: trial.suggest_float("x", 0, 1), 8, study_name="pg")
        assert len(handle.study.trials) == 8 and study.trials[0].params == {"x": 0.5}
        assert len({trial.params["x"] for trial in handle.study.trials}) == 8
