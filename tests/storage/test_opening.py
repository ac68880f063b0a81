"""Opening: kinds, first use by many at once, and what is said when it cannot be done."""

from __future__ import annotations

import pickle
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from support.postgres import PostgresServer
from support.racing import race

from vrampool.errors import SchemaError, StudyError, UnreachableError
from vrampool.storage import Catalog, Mark, PoolStorage, QueueView, open_storage, storage_of, url_of


def _open_at_once(barrier: Any, _index: int, url: str) -> int:
    barrier.wait()
    storage = open_storage(url, create_schema=True)
    study = optuna.create_study(study_name="race", storage=storage, load_if_exists=True)
    study.add_trial(optuna.create_trial(value=1.0))
    return len(Catalog(storage).submissions())


def _open_when_ready(barrier: Any, index: int, url: str) -> int:
    barrier.wait()
    if index % 2:
        return _open_at_once(_NoBarrier(), index, url)
    deadline_s = time.monotonic() + 60
    while True:
        try:
            storage = open_storage(url, create_schema=False)
            return len(storage.get_all_studies()) + len(Catalog(storage).submissions())
        except SchemaError:
            assert time.monotonic() < deadline_s


class _NoBarrier:
    def wait(self) -> None: ...


def test_twelve_processes_open_an_empty_database_at_once(url: str) -> None:
    race(12, _open_at_once, url)

    storage = open_storage(url, create_schema=False)
    assert [study.study_name for study in storage.get_all_studies()] == ["race"]
    numbers = [trial.number for trial in optuna.load_study(study_name="race", storage=storage).trials]
    assert numbers == list(range(12))
    storage.close()


def test_workers_see_the_database_complete_or_not_at_all(url: str) -> None:
    """None of them meets half of the tables while others still create them."""
    race(8, _open_when_ready, url)


def test_a_worker_is_told_to_wait_for_the_coordinator(url: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="not set up yet: start a coordinator first"):
        open_storage(url, create_schema=False)
    assert list(tmp_path.glob("*.db*")) == [], "looking must not create the file"


def test_a_study_of_the_users_own_is_opened_with_its_trials(url: str) -> None:
    study = optuna.create_study(study_name="mine", storage=url)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)

    storage = open_storage(url, create_schema=True)

    assert len(optuna.load_study(study_name="mine", storage=storage).trials) == 2
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    assert len(optuna.load_study(study_name="mine", storage=storage).trials) == 3
    storage.close()


def test_a_database_of_another_version_is_refused(storage: PoolStorage, ready_url: str) -> None:
    with storage.database.transaction() as session:
        session.execute(sa.text("UPDATE vrampool_meta SET value = '99'"))
    with pytest.raises(SchemaError, match="another version of vrampool"):
        open_storage(ready_url, create_schema=True)


def test_a_database_of_another_optuna_is_refused(storage: PoolStorage, ready_url: str) -> None:
    with storage.database.transaction() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = 'v0.9.0.a'"))
    with pytest.raises(SchemaError, match="storage upgrade"):
        open_storage(ready_url, create_schema=True)


def test_sqlite_readers_do_not_wait_for_a_writer(sqlite_url: str) -> None:
    storage = open_storage(sqlite_url, create_schema=True, busy_timeout_s=0.05)
    study_id = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE])
    writer = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    assert storage.get_all_trials(study_id) == []
    assert Catalog(storage).submissions() == []
    writer.rollback()
    writer.close()
    storage.close()


def test_paths_with_braces_spaces_and_percents_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "a {b} 100% c"
    folder.mkdir()
    storage = open_storage(f"sqlite:///{folder}/s.db", create_schema=True)
    assert (folder / "s.db").exists()
    url = url_of(storage)
    storage.close()
    assert url is not None
    open_storage(url, create_schema=False).close()


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = open_storage("sqlite:///rel.db", create_schema=True)
    assert url_of(storage) == f"sqlite:///{tmp_path}/rel.db"
    storage.close()


def test_an_unpickled_storage_still_takes_the_write_lock(sqlite_url: str) -> None:
    storage = pickle.loads(pickle.dumps(open_storage(sqlite_url, create_schema=True)))
    statements: list[str] = []
    sa.event.listen(storage.database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    storage.create_new_study([optuna.study.StudyDirection.MINIMIZE])
    assert statements[0] == "BEGIN IMMEDIATE"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("sqlite://", "in memory cannot be shared"),
        ("sqlite:///:memory:", "in memory cannot be shared"),
        ("sqlite:///file:x.db?uri=true", "file:"),
        ("mysql://root@localhost/x", "kind 'mysql'"),
        ("redis://localhost/0", "journal storages are not supported"),
        ("journal.log", "not a database URL"),
        ("postgresql+nosuchdriver://h/d", "needs the driver nosuchdriver"),
    ],
)
def test_kinds_that_cannot_be_shared_are_refused_with_a_remedy(url: str, text: str) -> None:
    with pytest.raises(StudyError, match=text):
        open_storage(url, create_schema=True)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="no such place does not exist"):
        open_storage(f"sqlite:///{tmp_path}/no such place/x.db", create_schema=True)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello " * 1000)
    with pytest.raises(StudyError, match="no SQLite database"):
        open_storage(f"sqlite:///{tmp_path}/notes.txt", create_schema=True)


def test_a_database_of_something_else_is_refused_before_anything_is_written(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE studies (a INTEGER)"))
    with pytest.raises(StudyError, match="has a table 'studies' that is not Optuna's: name another"):
        open_storage(url, create_schema=True)
    assert sa.inspect(engine).get_table_names() == ["studies"]
    engine.dispose()


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(UnreachableError) as caught:
        open_storage("postgresql://me:geheim@127.0.0.1:1/db", create_schema=True)
    text = str(caught.value)
    assert "postgresql+psycopg://me:***@127.0.0.1:1/db cannot be used" in text
    assert "start the server" in text
    assert "geheim" not in text


def test_a_missing_postgresql_database_is_named(postgres_server: PostgresServer) -> None:
    with pytest.raises(UnreachableError, match="createdb"):
        open_storage(postgres_server.url("nowhere"), create_schema=True)


def test_postgresql_connections_notice_a_server_that_is_gone(postgres_url: str) -> None:
    storage = open_storage(postgres_url + "&keepalives_idle=99", create_schema=True)
    options = storage.database.engine.dialect.create_connect_args(storage.database.engine.url)[1]
    options.update(storage.database.engine_kwargs["connect_args"])
    assert options["tcp_user_timeout"] == 5_000
    assert options["connect_timeout"] == 4
    assert options["keepalives_idle"] == "99", "what the user's URL says wins"
    storage.close()


def test_an_idle_connection_that_was_cut_is_replaced_unseen(postgres_server: PostgresServer, postgres_url: str) -> None:
    storage = open_storage(postgres_url, create_schema=True)
    study_id = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE])
    postgres_server.execute(
        "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'test_%'"
    )
    storage.set_study_user_attr(study_id, "k", 1)
    assert storage.get_study_user_attrs(study_id) == {"k": 1}
    storage.close()


def test_the_storage_under_a_study_and_a_view_is_found(storage: PoolStorage) -> None:
    study = optuna.create_study(storage=QueueView(storage, Mark("s1")))
    assert storage_of(study) is storage
    assert storage_of(QueueView(storage, Mark("s1"))) is storage
    with pytest.raises(StudyError, match="open_storage"):
        storage_of(optuna.create_study())


def test_only_studies_in_a_database_have_a_url(tmp_path: Path) -> None:
    assert url_of(optuna.create_study()) is None
    assert url_of(optuna.create_study(storage=f"sqlite:///{tmp_path}/x.db")) == f"sqlite:///{tmp_path}/x.db"
    assert url_of(optuna.create_study(storage="sqlite://")) is None


def test_importing_the_package_loads_no_heavy_module() -> None:
    """Every command of the CLI pays for it."""
    code = "import sys, vrampool.storage; print(*(m for m in ('alembic', 'torch', 'pandas', 'rq') if m in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
