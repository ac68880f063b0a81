"""Connecting to Redis: what is refused, and what the refusal says."""

from __future__ import annotations

import re
import socket

import pytest
import redis
from support.valkey import SIGNER, ticket

from vrampool.errors import SettingsError, UnreachableError
from vrampool.queueing import JobQueue, TransientRedisError, connect
from vrampool.queueing import connection as door


def test_an_unreachable_redis_is_named_without_its_password():
    with pytest.raises(UnreachableError) as caught:
        connect("redis://anna:hunter2@127.0.0.1:1/0", role="client")
    text = str(caught.value)
    assert "127.0.0.1:1" in text and "anna" in text and "start it, or check its URL" in text
    assert "hunter2" not in text and len(text.splitlines()) <= 2


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1/0?password=hunter2",
        "redis://:hunter2@127.0.0.1:1/0",
        "redis://:1/hunter2@127.0.0.1:1",
        "redis://:hunter2/x@127.0.0.1:1",
        "rediss://anna:hunter2@@127.0.0.1:1/0",
        "unix://anna:hunter2@/nowhere.sock",
    ],
)
def test_no_way_of_writing_a_password_shows_it(url):
    with pytest.raises((UnreachableError, SettingsError)) as caught:
        connect(url, role="client")
    assert "hunter2" not in f"{caught.value}"


def test_a_missing_socket_is_unreachable(tmp_path):
    with pytest.raises(UnreachableError, match="does not answer"):
        connect(f"unix://{tmp_path}/none.sock", role="client")


@pytest.mark.parametrize(
    "url", ["http://host:1", "localhost:6379", "redis://host:port/0", "redis://h/0?socket_timeout=x"]
)
def test_what_is_no_url_of_a_redis_is_a_setting_to_correct(url):
    with pytest.raises(SettingsError, match="no URL of a Redis"):
        connect(url, role="client")


def test_a_redis_that_may_evict_keys_is_refused(valkey):
    admin = redis.Redis.from_url(valkey)
    admin.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(UnreachableError, match=r"maxmemory-policy allkeys-lru.*noeviction"):
            connect(valkey, role="client")
    finally:
        admin.config_set("maxmemory-policy", "noeviction")
        admin.close()


def test_a_user_who_may_not_ask_for_the_configuration_is_still_checked(valkey):
    """Managed servers forbid CONFIG; INFO tells the policy too."""
    admin = redis.Redis.from_url(valkey)
    admin.execute_command("ACL", "SETUSER", "plain", "on", ">pw-of-plain", "~*", "&*", "+@all", "-config")
    url = valkey.replace("unix://", "unix://plain:pw-of-plain@")
    try:
        connect(url, role="client").close()
        admin.config_set("maxmemory-policy", "volatile-lru")
        with pytest.raises(UnreachableError, match="volatile-lru"):
            connect(url, role="client")
    finally:
        admin.config_set("maxmemory-policy", "noeviction")
        admin.acl_deluser("plain")
        admin.close()


def test_a_wrong_password_is_told_as_such_and_not_shown(valkey):
    with pytest.raises(UnreachableError, match="refuses us") as caught:
        connect(valkey.replace("unix://", "unix://nobody:hunter2@"), role="client")
    assert "hunter2" not in str(caught.value)


def test_an_old_server_is_refused(valkey, monkeypatch):
    monkeypatch.setattr(door, "OLDEST_VERSION", (99, 0))
    with pytest.raises(UnreachableError, match=r"is version [0-9.]+; version 6.2 or newer"):
        connect(valkey, role="client")


def test_the_connection_names_its_role_and_gives_up_within_five_seconds(valkey):
    client = connect(valkey, role="worker of gpu 0")
    options = client.connection_pool.connection_kwargs
    assert client.client_info()["name"] == "vrampool-worker-of-gpu-0"
    assert 0 < options["socket_timeout"] < 5 and 0 < options["socket_connect_timeout"] < 5
    assert options["health_check_interval"] > 0
    client.close()


def test_a_server_that_went_away_is_a_passing_fault(tmp_path, pool):
    """The call that fails says that calling again is right; a caller need not know redis-py."""
    from vrampool.local.embedded import EmbeddedValkey

    server = EmbeddedValkey(tmp_path).start()
    client = connect(server.url, role="client")
    queue = JobQueue(client, pool, SIGNER)
    server.stop()
    with pytest.raises(TransientRedisError, match="does not answer"):
        queue.enqueue([ticket(pool, 1)])
    server.start()
    try:
        assert queue.enqueue([ticket(pool, 1)]) == ["sub1-1"]
    finally:
        client.close()
        server.stop()


def test_a_full_redis_is_a_passing_fault_and_loses_nothing(connection, pool):
    queue = JobQueue(connection, pool, SIGNER)
    queue.enqueue([ticket(pool, 1)])
    connection.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(TransientRedisError, match="full"):
            queue.enqueue([ticket(pool, 2)])
    finally:
        connection.config_set("maxmemory", "0")
    assert [job.number for job in queue.waiting()] == [1]


def test_scripts_that_the_server_forgot_are_sent_again(connection, pool):
    queue = JobQueue(connection, pool, SIGNER)
    queue.enqueue([ticket(pool, 1)])
    connection.script_flush()
    assert queue.enqueue([ticket(pool, 2)]) == ["sub1-2"]


def test_no_key_of_ours_lacks_the_pool_in_its_name(connection, pool):
    """Two pools on one Redis must never meet in a key."""
    from vrampool.queueing.names import Names

    ours = [key for key in vars(Names(pool)).values() if key.startswith("vrampool:")]
    assert ours and all(re.fullmatch(f"vrampool:{pool}:.+", key) for key in ours)


def test_what_accepts_but_never_answers_is_unreachable(monkeypatch):
    monkeypatch.setattr(door, "SOCKET_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UnreachableError, match="does not answer"):
        connect(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", role="client")
