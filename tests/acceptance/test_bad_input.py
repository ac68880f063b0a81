"""Bad input gets a clear error before anything runs: exit code 2, one or two lines, no traceback but with --debug."""

from __future__ import annotations

import platform
import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import commands
from support.commands import Done, call
from support.fake_nvml import FakeNvml
from support.pools import LivePool, check_invariants, processes_of
from support.waiting import until

import vrampool
from vrampool.errors import InputError, ObjectiveError, OutOfScopeError, RequestError, StudyError
from vrampool.local.embedded import EmbeddedValkey
from vrampool.queueing import connect

OBJECTIVES = Path(__file__).with_name("objectives.py")
OBJECTIVE = f"{OBJECTIVES}:one"
SOURCE = """
import asyncio
async def asynchronous(trial):
    return 1.0
def two(trial, more):
    return 1.0
def generator(trial):
    yield 1.0
value = 3
broken = undefined_name
"""


def assert_told(done: Done, *words: str) -> None:
    """Assert that a command was refused in one or two lines that hold these words."""
    assert done.code == 2, done
    assert done.out == ""
    lines = done.err.strip().splitlines()
    assert 1 <= len(lines) <= 2, done.err
    assert lines[0].startswith("error: ")
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err


@pytest.fixture
def refused(tmp_path, capsys) -> Iterator:
    """Call a command that must be refused, and see that it has started nothing."""
    state = tmp_path / "state"

    def refuse(*words: str, arguments: tuple, named: str = "run", env=None) -> None:
        done = call(capsys, named, *arguments, "--state-dir", state)
        assert_told(done, *words)
        assert not (state / "valkey").exists(), "no pool was started for it"

    yield refuse
    assert processes_of(state) == []


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("nowhere.py:objective", ["nowhere.py"]),
        ("no_such_package.module:objective", ["no_such_package.module", "no module"]),
        ("MADE:absent", ["has no 'absent'", "it has"]),
        ("MADE", ["MADE", ":"]),
        ("MADE:asynchronous", ["asynchronous"]),
        ("MADE:two", ["must take one trial", "more"]),
        (f"{OBJECTIVES}:OBJECTIVES", ["OBJECTIVES"]),
        ("", ["objective"]),
        (":objective", ["objective"]),
    ],
)
def test_an_objective_that_is_not_there_or_cannot_be_called(refused, tmp_path, objective, words):
    made = tmp_path / "made.py"
    made.write_text(SOURCE)
    arguments = (objective.replace("MADE", str(made)), "--trials", "1")
    refused(*[word.replace("MADE", str(made)) for word in words], arguments=arguments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--trials", "0"), ["--trials must be at least 1, not 0"]),
        (("--trials", "-3"), ["--trials must be at least 1, not -3"]),
        (("--trials", "many"), ["many", "--trials"]),
        (("--total", "0"), ["--total must be at least 1"]),
        ((), ["--trials N"]),
        (("--trials", "1", "--total", "1"), ["--trials", "--total", "not both"]),
        (("--trials", "1", "--vram", "6XB"), ["--vram '6XB'", "6GiB"]),
        (("--trials", "1", "--vram", "much"), ["'much'"]),
        (("--trials", "1", "--vram", "0"), ["more than 0"]),
        (("--trials", "1", "--vram", "-2GiB"), ["'-2GiB'"]),
        (("--trials", "1", "--gpus", "2"), ["--gpus=2", "one trial uses one device"]),
        (("--trials", "1", "--direction", "up"), ["--direction", "'up'", "minimize"]),
        (("--trials", "1", "--timeout", "0"), ["--timeout must", "above 0"]),
        (("--trials", "1", "--trial-timeout", "-1"), ["--trial-timeout must", "above 0"]),
        (("--trials", "1", "--max-concurrent", "0"), ["--max-concurrent must be at least 1"]),
        (("--trials", "1", "--env", "NOVALUE"), ["NOVALUE", "NAME=VALUE"]),
        (("--trials", "1", "--point", "{x}"), ["{x}", "JSON"]),
        (("--trials", "1", "--point", "[1]"), ["JSON object"]),
        (("--trials", "1", "--workdir", "/no/such/folder"), ["/no/such/folder", "not a directory"]),
        (("--trials", "1", "--sampler", "optuna.samplers:NoSuch"), ["--sampler", "NoSuch"]),
        (("--trials", "1", "--sampler", "no_such_package:Sampler"), ["no_such_package"]),
        (("--trials", "1", "--sampler", "builtins:dict"), ["sampler"]),
        (("--trials", "1", "--pruner", "optuna.pruners:NoSuch"), ["NoSuch"]),
        (("--trials", "1", "--budget", "150%"), ["--budget '150%'"]),
        (("--trials", "1", "--budget", "lots"), ["--budget 'lots'"]),
        (("--trials", "1", "--pool", "a/b"), ["--pool", "a/b"]),
        (("--trials", "1", "--max-trials", "0"), ["--max-trials must be at least 1"]),
        (("--trials", "1", "--age-limit", "-1"), ["--age-limit must be"]),
        (("--trials", "1", "--max-per-device", "0"), ["--max-per-device must be"]),
        (("--trials", "1", "--redis", "redis://hub/0"), ["--redis is given but --storage is not"]),
        (("--trials", "1", "--no-such-option"), ["--no-such-option"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_option_that_cannot_be_meant(refused, options, words):
    refused(*words, arguments=(OBJECTIVE, *options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpu", "rtx"), ["rtx"]),
        (("--gpu", "cpu,0"), ["cpu,0"]),
        (("--gpu", "cpu", "--budget", "900TiB"), ["--budget '900TiB'", "not within the device"]),
    ],
    ids=["no such device", "no list", "beyond the device"],
)
def test_a_device_that_is_not_there_or_has_less(tmp_path, capsys, options, words):
    """Seen by the worker's supervisor, told by whoever started the pool; no study was made."""
    state = tmp_path / "state"
    done = call(capsys, "run", OBJECTIVE, "--trials", "1", "--preload", "", "--state-dir", state, *options)
    assert_told(done, *words)
    assert processes_of(state) == []
    with sqlite3.connect(state / "study.db") as database:
        tables = [row[0] for row in database.execute("select name from sqlite_master")]
        assert "studies" not in tables or not database.execute("select * from studies").fetchall()


def test_settings_that_cannot_be_read_say_where_they_come_from(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("vrampool.toml").write_text("budgets = '1GiB'\n")
    refused("'budgets'", "vrampool.toml", arguments=(OBJECTIVE, "--trials", "1"))
    Path("vrampool.toml").write_text("budget = ")
    refused("vrampool.toml", "not TOML", arguments=(OBJECTIVE, "--trials", "1"))
    Path("vrampool.toml").write_bytes(b"budget = '\xff\xfe'")
    refused("vrampool.toml", "not TOML", arguments=(OBJECTIVE, "--trials", "1"))
    for text in ("lease_ttl_s = nan", "grace_s = inf", "spares = 99999999", "max_trials = 1.9", "log_bytes = -1"):
        Path("vrampool.toml").write_text(text)
        refused(text.partition(" ")[0], arguments=(OBJECTIVE, "--trials", "1"))
    Path("vrampool.toml").write_text("vrampool = 5")
    refused("must be a table", arguments=(OBJECTIVE, "--trials", "1"))
    Path("vrampool.toml").unlink()
    monkeypatch.setenv("VRAMPOOL_SPARES", "few")
    refused("VRAMPOOL_SPARES", "'few'", arguments=(OBJECTIVE, "--trials", "1"))
    monkeypatch.delenv("VRAMPOOL_SPARES")
    monkeypatch.setenv("GPU_MEM_FRACTION", "85")
    refused("GPU_MEM_FRACTION", "0.85", arguments=(OBJECTIVE, "--trials", "1"))


def test_debug_shows_where(tmp_path, capsys):
    """The same error, as the exception it is."""
    from vrampool.cli import main

    with pytest.raises(ObjectiveError):
        main(["run", "nowhere.py:objective", "--trials", "1", "--debug", "--state-dir", str(tmp_path)])
    done = commands.run("run", "nowhere.py:objective", "--trials", "1", "--debug", "--state-dir", tmp_path)
    assert "Traceback" in done.err and "ObjectiveError" in done.err
    assert done.code != 0


def test_another_operating_system_is_out_of_scope(refused, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    refused("Linux", "Darwin", arguments=(OBJECTIVE, "--trials", "1"))


def test_the_same_from_a_notebook(pool: LivePool):
    """Exceptions of one family, before a study or trial is there."""
    lock = threading.Lock()

    def holds_a_lock(trial):
        with lock:
            return 1.0

    async def asynchronous(trial):
        return 1.0

    studies = len(pool.pool.storage.get_all_studies())
    wrong = [
        (ObjectiveError, {"objective": holds_a_lock}),
        (ObjectiveError, {"objective": asynchronous}),
        (ObjectiveError, {"objective": lambda: 1.0}),
        (ObjectiveError, {"objective": 3}),
        (InputError, {"n_trials": 0}),
        (InputError, {"n_trials": 1.5}),
        (RequestError, {"vram": "6XB"}),
        (RequestError, {"vram": 0}),
        (RequestError, {"vram": "900GiB"}),
        (OutOfScopeError, {"gpus": 2}),
        (InputError, {"direction": "up"}),
        (InputError, {"direction": ["minimize", "minimize"]}),
        (InputError, {"direction": "minimize", "directions": ["minimize"]}),
        (InputError, {"timeout": -1}),
        (InputError, {"trial_timeout_s": float("nan")}),
        (InputError, {"n_trials": 10**23}),
        (InputError, {"priority": 10**26}),
        (InputError, {"max_infra_retries": -1}),
        (InputError, {"study_name": ""}),
        (InputError, {"env": {"A\nB": "1"}}),
        (InputError, {"points": [{"x": float("nan")}]}),
        (InputError, {"oom": "never"}),
        (InputError, {"sampler": "nonsense"}),
        (InputError, {"pruner": object()}),
    ]
    for kind, options in wrong:
        asked = {"objective": OBJECTIVE, "n_trials": 1, **options}
        with pytest.raises(kind) as raised:
            pool.pool.submit(**asked)
        assert issubclass(kind, InputError)
        assert len(str(raised.value).splitlines()) <= 2
    assert len(pool.pool.storage.get_all_studies()) == studies
    with pytest.raises(InputError, match="no setting 'gpu_memory'"):
        vrampool.Pool(gpu_memory=3)
    check_invariants(pool)


def test_a_request_beyond_every_device_is_refused_by_a_pool_that_runs(pool: LivePool, capsys):
    done = call(capsys, *("run", OBJECTIVE, "--trials", "1", "--vram", "900GiB", "--state-dir", pool.state_dir))
    assert_told(done, "900 GiB", "1.0 GiB", "ask for less")
    check_invariants(pool)


def test_a_request_beyond_every_device_is_refused_by_a_pool_that_was_started_for_it(tmp_path):
    """It is not known before the workers are there; still nothing is run and nothing waits for ever."""
    done = commands.run(
        *("run", OBJECTIVE, "--trials", "1", "--vram", "900GiB", "--gpu", "cpu", "--budget", "1GiB"),
        *("--preload", "", "--state-dir", tmp_path / "state"),
        env={"VRAMPOOL_SHARE": "1"},
    )
    assert_told(done, "900 GiB", "1.0 GiB", "ask for less")
    assert processes_of(tmp_path / "state") == []


def test_a_study_with_other_directions_is_refused(pool: LivePool, capsys):
    pool.run(OBJECTIVE, study_name="minimized")
    with pytest.raises(StudyError, match=r"minimized.*minimize"):
        pool.pool.submit(OBJECTIVE, 1, study_name="minimized", direction="maximize")
    asked = ("run", OBJECTIVE, "--trials", "1", "--study", "minimized", "--state-dir", pool.state_dir)
    assert_told(call(capsys, *asked, "--direction", "maximize"), "minimized", "minimize", "maximize")
    with pytest.raises(StudyError):
        pool.pool.submit(OBJECTIVE, 1, study_name="minimized", directions=["minimize", "minimize"])
    assert [trial.value for trial in pool.pool.attach("minimized").trials] == [1.0]
    check_invariants(pool)


def test_commands_that_look_at_a_pool_say_so_when_there_is_none(tmp_path, capsys):
    for arguments in (("status",), ("why", "digits", "0"), ("stop", "digits")):
        assert_told(call(capsys, *arguments, "--state-dir", tmp_path), "no pool runs", "vrampool up")
    assert_told(call(capsys, "worker", "--gpu", "cpu", "--state-dir", tmp_path), "--redis", "vrampool up")
    assert_told(call(capsys, "coordinator", "--state-dir", tmp_path), "--redis", "--storage")


def test_studies_and_trials_that_are_not_there(pool: LivePool, capsys):
    at = ("--state-dir", pool.state_dir)
    for arguments in (("status", "absent"), ("why", "absent", "0"), ("stop", "absent")):
        assert_told(call(capsys, *arguments, *at), "'absent'")
    pool.run(OBJECTIVE, study_name="one-trial")
    assert_told(call(capsys, "why", "one-trial", "7", *at), "no trial 7")


# ---- services ----------------------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path) -> Path:
    path = tmp_path / "secret"
    path.write_text("0" * 64)
    path.chmod(0o600)
    return path


def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_redis_that_does_not_answer_is_named_without_its_password(tmp_path, secret, capsys):
    port = closed_port()
    at = ("--redis", f"redis://user:hush@127.0.0.1:{port}/0", "--storage", f"sqlite:///{tmp_path}/s.db")
    for command in (("run", OBJECTIVE, "--trials", "1"), ("status",)):
        done = call(capsys, *command, *at, "--state-dir", tmp_path)
        assert_told(done, "Redis", f"127.0.0.1:{port}")
        assert "hush" not in done.err
    for command in ("worker", "coordinator"):
        more = ("--gpu", "cpu") if command == "worker" else ()
        done = commands.run(command, *more, *at, "--state-dir", tmp_path, env={"VRAMPOOL_SHARE": "1"})
        assert done.code == 2, done
        assert f"127.0.0.1:{port}" in done.err and "hush" not in done.err and "Traceback" not in done.err


@pytest.fixture
def redis_url(tmp_path_factory) -> Iterator[str]:
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server.url


def test_a_database_that_does_not_answer_is_named_without_its_password(tmp_path, secret, redis_url, capsys):
    port = closed_port()
    storage = f"postgresql+psycopg://user:hush@127.0.0.1:{port}/studies"
    done = call(
        capsys,
        *("run", OBJECTIVE, "--trials", "1", "--redis", redis_url, "--storage", storage),
        "--state-dir",
        tmp_path,
    )
    assert_told(done, f"127.0.0.1:{port}/studies")
    assert "hush" not in done.err
    for kind in ("mysql://root@localhost/studies", "nonsense", "sqlite:////no/such/folder/s.db"):
        told = call(
            capsys, "run", OBJECTIVE, "--trials", "1", "--redis", redis_url, "--storage", kind, "--state-dir", tmp_path
        )
        assert_told(told)


def test_a_redis_that_evicts_keys_is_refused(tmp_path, secret, redis_url, capsys):
    client = connect(redis_url, role="test")
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.close()
    at = ("--redis", redis_url, "--storage", f"sqlite:///{tmp_path}/s.db", "--state-dir", tmp_path)
    assert_told(call(capsys, "run", OBJECTIVE, "--trials", "1", *at), "allkeys-lru", "noeviction")


@pytest.mark.parametrize("whose", ["optuna's", "ours"])
def test_a_storage_of_another_schema_version_is_refused(tmp_path, secret, redis_url, capsys, whose):
    path = tmp_path / "s.db"
    at = ("--redis", redis_url, "--storage", f"sqlite:///{path}", "--state-dir", tmp_path)
    vrampool.Pool(redis=redis_url, storage=f"sqlite:///{path}", state_dir=tmp_path).handles()
    with sqlite3.connect(path) as database:
        if whose == "ours":
            database.execute("update vrampool_meta set value = '999'")
        else:
            database.execute("update alembic_version set version_num = 'v9.9.9.a'")
            database.execute("update version_info set schema_version = 999")
    database.close()
    assert_told(call(capsys, "run", OBJECTIVE, "--trials", "1", *at), "version")


def test_a_local_pool_whose_storage_is_of_another_version_says_so(tmp_path):
    """`run` starts the pool, its coordinator finds out, and the words are told by `run`."""
    state = tmp_path / "state"
    state.mkdir()
    with sqlite3.connect(state / "study.db") as database:
        database.execute("create table alembic_version (version_num varchar(32) not null)")
        database.execute("insert into alembic_version values ('v9.9.9.a')")
        database.execute(
            "create table version_info (version_info_id integer primary key, schema_version integer, "
            "library_version varchar(256))"
        )
        database.execute("insert into version_info values (1, 999, '99.0.0')")
    database.close()
    done = commands.run(
        *("run", OBJECTIVE, "--trials", "1", "--vram", "200MiB", "--gpu", "cpu", "--budget", "1GiB"),
        *("--preload", "", "--state-dir", state),
        env={"VRAMPOOL_SHARE": "1"},
    )
    assert_told(done, "version")
    assert processes_of(state) == []


def test_a_second_worker_on_a_device_is_refused(tmp_path, redis_url, secret):
    """On a card of its own kind, so that it meets no worker of the user's."""
    cards = FakeNvml(tmp_path / "nvml")
    card = cards.add_card()
    vrampool.Pool(redis=redis_url, storage=f"sqlite:///{tmp_path}/s.db", state_dir=tmp_path).handles()
    at = ("--gpu", card.uuid, "--redis", redis_url, "--storage", f"sqlite:///{tmp_path}/s.db", "--state-dir", tmp_path)
    first = commands.start("worker", *at, "--preload", "", env=cards.env)
    try:
        pool = vrampool.Pool(redis=redis_url, storage=f"sqlite:///{tmp_path}/s.db", state_dir=tmp_path)
        until(pool.devices, what="the first worker")
        done = commands.run("worker", *at, "--preload", "", env=cards.env)
        assert done.code == 2, done
        errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1 and card.uuid in errors[0] and "--share" in errors[0]
        assert "Traceback" not in done.err
        local = commands.run(
            *("run", OBJECTIVE, "--trials", "1", "--gpu", card.uuid, "--state-dir", tmp_path / "local"), env=cards.env
        )
        assert_told(local, card.uuid, "--share")
        pool.close()
    finally:
        first.terminate()
        assert commands.finish(first).code == 0
