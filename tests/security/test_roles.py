"""`deploy/redis/users.acl`: each role can do its work, and nothing else."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry
from security.deployment import ROLES, USERS, Deployment, password, users
from support.tcp_valkey import TcpValkey, tcp_valkey

from vrampool.queueing.names import Names

#: The first test of the folder that needs the deployment waits for its day's work.
pytestmark = pytest.mark.timeout(300)
NAMES = Names("vrampool")
#: What a connection may do before it has said who it is; no ACL can take it away.
FREE_FOR_ALL = {"auth", "hello", "quit", "reset"}
READERS = ("client", "viewer")


def allowed(role: str) -> set[str]:
    """Return the commands that the file gives a role."""
    (line,) = [line for line in USERS.read_text().splitlines() if line.startswith(f"user {role} ")]
    return {word[1:] for word in line.replace("(", "").split() if word.startswith("+")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with tcp_valkey(tmp_path_factory.mktemp("users"), users()) as started:
        yield started


def every_command(server: TcpValkey) -> dict[str, int]:
    """Return the arity of each command that the server knows, by its name as ACLs write it."""
    found: dict[str, int] = {}

    def add(infos: list[Any]) -> None:
        for info in infos:
            found[info[0].decode()] = int(info[1])
            add(info[9])

    connection = server.admin.connection_pool.get_connection()
    try:
        connection.send_command("COMMAND")  # redis-py would leave the subcommands out
        add(connection.read_response())
    finally:
        server.admin.connection_pool.release(connection)
    return found


def refused(server: TcpValkey, role: str, *words: str) -> bool:
    answer = server.admin.execute_command("ACL", "DRYRUN", role, *words)
    text = answer.decode() if isinstance(answer, bytes) else str(answer)
    assert text == "OK" or "no permissions" in text, text
    return text != "OK"


# ---- the file ------------------------------------------------------------------------------------------


def test_the_file_names_no_password_that_would_work_unchanged_in_silence():
    """Whoever forgets to fill one in has a user with a long and telling password, not one without."""
    text = USERS.read_text()
    assert text.startswith("user default off\n")
    assert set(re.findall(r">(\S+)", text)) == {f"replace-the-password-of-{role}" for role in ROLES}
    assert "nopass" not in text and "+@" not in text and "allkeys" not in text and "~* " not in text


@pytest.mark.parametrize("role", ROLES)
def test_every_command_that_is_not_in_the_file_is_refused(server: TcpValkey, role: str):
    may = allowed(role)
    commands = every_command(server)
    assert may <= set(commands), may - set(commands)
    parents = {name.partition("|")[0] for name in commands if "|" in name}
    tried = 0
    for name, arity in commands.items():
        if name in may | FREE_FOR_ALL or name in parents:
            continue
        words = name.split("|")
        words += ["1"] * (abs(arity) - len(words))
        assert refused(server, role, *words), name
        tried += 1
    assert tried > 200


@pytest.mark.parametrize("role", ROLES)
def test_keys_and_channels_of_others_are_refused(server: TcpValkey, role: str):
    """Of another pool, of another application, of RQ's other queues."""
    foreign = ["else", "vrampool:other:live:a-1", "rq:queue:other", "rq:wip:other", "vrampool:vrampool", "rq:groups"]
    for key in foreign:
        assert refused(server, role, "GET", key)
        assert refused(server, role, "LRANGE", key, "0", "-1")
        if role not in READERS:
            assert refused(server, role, "SET", key, "1")
            assert refused(server, role, "DEL", key)
    for channel in ("else", "vrampool:other:events", "vrampool:other:news", "rq:pubsub:somebody"):
        answer = refused(server, role, "SUBSCRIBE", channel)
        assert answer or (role == "worker" and channel.startswith("rq:"))
    own = NAMES.calls("w1") if role == "worker" else NAMES.news
    assert not refused(server, role, "SUBSCRIBE", NAMES.events, own)
    assert refused(server, role, "SUBSCRIBE", NAMES.calls("w1")) is (role in READERS)


def test_a_worker_cannot_make_itself_the_leader(server: TcpValkey):
    for key in (NAMES.leader, NAMES.epoch, NAMES.demand):
        assert refused(server, "worker", "SET", key, "1")
        assert not refused(server, "coordinator", "SET", key, "1")


@pytest.mark.parametrize("role", READERS)
def test_who_only_looks_can_change_nothing_not_even_by_a_script(server: TcpValkey, role: str):
    keys = [NAMES.waiting, NAMES.live("a-1"), NAMES.job("a-1"), NAMES.leader, NAMES.workers]
    with server.client(role, password(role)) as client:
        for key, command in itertools.product(keys, ("SET", "DEL", "EXPIRE", "LPUSH", "HSET", "ZADD")):
            arguments = {"DEL": [], "HSET": ["a", "1"], "ZADD": ["1", "a"]}.get(command, ["1"])
            with pytest.raises(NoPermissionError):
                client.execute_command(command, key, *arguments)
            words = ", ".join(repr(word) for word in (command, key, *arguments))
            with pytest.raises(redis.ResponseError, match=r"(?i)permission|ACL"):
                client.eval(f"return redis.call({words})", 1, key)
        assert client.lrange(NAMES.waiting, 0, -1) == []


def test_only_those_who_act_may_publish(server: TcpValkey):
    """`drain` and `pause` are signed besides; a viewer cannot even wake anybody."""
    for role in ("coordinator", "worker", "client"):
        assert not refused(server, role, "PUBLISH", NAMES.events, "x")
        assert not refused(server, role, "PUBLISH", NAMES.news, "x")
    assert not refused(server, "coordinator", "PUBLISH", NAMES.calls("w1"), "x")
    assert refused(server, "viewer", "PUBLISH", NAMES.events, "x")
    assert refused(server, "client", "PUBLISH", "rq:pubsub:somebody", "x")
    assert refused(server, "client", "DEL", NAMES.waiting) and not refused(
        server, "client", "DEL", f"{NAMES.output_prefix}x"
    )


def test_without_a_user_there_is_nothing(server: TcpValkey):
    with redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as nobody, pytest.raises(redis.AuthenticationError):
        nobody.ping()


# ---- the roles at work ---------------------------------------------------------------------------------


def test_a_days_work_meets_no_refusal(deployment: Deployment):
    """Coordinator, `vrampool worker`, `rq worker`, a notebook, and the commands of people, each as its own user."""
    assert deployment.denied() == []
    seen = deployment.monitor.by_user()
    assert set(ROLES) <= set(seen)
    for role in ROLES:
        assert seen[role] - {"hello"} <= allowed(role), role


def test_the_file_gives_no_role_what_nobody_of_them_uses(deployment: Deployment):
    """Each command is seen in a day's work, or is one of a few that only a bad day needs."""
    rare = {
        "client|info",
        "hget",  # a job is put back
        "discard",
        "ping",
        "unsubscribe",
        "ttl",
        "eval",
        "zscore",  # an overhead is read where there is a GPU
        "xread",  # `vrampool logs`
        "xrevrange",  # the memory timeline
        "smembers",
        "scan",
        "hdel",
        "lindex",  # priorities
        "hsetnx",  # a beat while a trial runs; on a fast machine none lasts that long
        "linsert",
        "srem",
        "zrem",
        "lpush",
        "persist",
    }
    seen = deployment.monitor.by_user()
    used = set().union(*(seen[role] for role in ROLES))
    assert set().union(*(allowed(role) for role in ROLES)) - used <= rare


def test_another_users_password_is_refused_and_told_in_one_line(deployment: Deployment, tmp_path: Path):
    wrong = deployment.url("viewer").replace(password("viewer"), "guessed")
    done = deployment.command("viewer", "status", redis=wrong)
    assert done.code == 2 and "refuses us" in done.err and "guessed" not in done.err
    assert len(done.err.strip().splitlines()) == 1
