"""Events: hints that wake, commands that only a holder of the secret can give."""

from __future__ import annotations

import json
import os
import select
import threading
import time

import pytest
from support.valkey import SIGNER, ticket, until

from vrampool.errors import MessageError
from vrampool.local.embedded import EmbeddedValkey
from vrampool.queueing import Events, JobQueue, Offer, begin, connect, finish, take
from vrampool.queueing.names import Names
from vrampool.signing import Signer


@pytest.fixture
def events(connection, pool) -> Events:
    return Events(connection, pool, SIGNER)


def test_everybody_who_listens_hears_in_order(events):
    with events.subscribe() as first, events.subscribe() as second:
        events.publish({"submission": "sub1", "state": "stopping"})
        events.poke()
        for listener in (first, second):
            heard = []
            until(lambda listener=listener, heard=heard: heard.extend(listener.wait(1)) or len(heard) == 2)
            assert heard == [{"submission": "sub1", "state": "stopping"}, {"kind": "poke"}]


def test_a_wait_ends_at_once_when_something_happens_and_in_time_when_nothing_does(events):
    with events.subscribe() as listener:
        start = time.monotonic()
        assert listener.wait(0.05) == []
        assert 0.04 < time.monotonic() - start < 2
        threading.Timer(0.05, events.poke).start()
        start = time.monotonic()
        assert listener.wait(30) == [{"kind": "poke"}]
        assert time.monotonic() - start < 5


def test_a_subscription_can_be_watched_by_a_selector(events):
    with events.subscribe() as listener:
        assert select.select([listener], [], [], 0)[0] == []
        events.poke()
        assert select.select([listener], [], [], 20)[0] == [listener]
        assert listener.read() == [{"kind": "poke"}]
        assert select.select([listener], [], [], 0)[0] == [] and listener.read() == []


def test_a_worker_hears_what_concerns_everybody_and_no_news(events):
    with events.subscribe("w1") as worker, events.subscribe() as watcher:
        events.tell({"kind": "news"})
        events.publish({"kind": "for all"})
        assert worker.wait(20) == [{"kind": "for all"}]
        heard = []
        until(lambda: heard.extend(watcher.wait(1)) or len(heard) == 2)
    assert heard == [{"kind": "news"}, {"kind": "for all"}]


def test_nobody_hears_another_pool(events, connection, pool):
    with events.subscribe() as listener:
        Events(connection, pool + "-b").poke()
        events.publish({"mine": 1})
        assert listener.wait(20) == [{"mine": 1}]


def test_a_signed_command_arrives(events):
    with events.subscribe() as listener:
        assert events.command("drain", worker="w1") == 1
        heard = listener.wait(20)
    assert [(event["command"], event["worker"]) for event in heard] == [("drain", "w1")]


def test_an_unsigned_altered_or_old_command_is_refused(events, connection, pool):
    """Whoever may publish on the channel must not be able to stop workers."""
    channel = Names(pool).events
    seconds, _ = connection.time()
    stranger = Signer(b"a stranger's secret, long enough")
    old = SIGNER.sign_json("command", {"command": "drain", "at": seconds - 3_600})
    with events.subscribe() as listener:
        connection.publish(channel, json.dumps({"command": "drain"}))
        connection.publish(channel, stranger.sign_json("command", {"command": "drain", "at": seconds}))
        connection.publish(channel, SIGNER.sign_json("job", {"command": "drain", "at": seconds}))
        connection.publish(channel, old)
        connection.publish(channel, b"\xff\xfe not even text")
        connection.publish(channel, b"[1, 2]")
        events.command("resume")
        heard = until(lambda: listener.wait(1))
    assert [event.get("command") for event in heard] == ["resume"]


def test_a_command_without_the_secret_cannot_be_given(connection, pool):
    with pytest.raises(MessageError, match="secret"):
        Events(connection, pool).command("drain")


def test_a_subscription_outlives_a_restart_of_redis_and_says_so(tmp_path, pool):
    server = EmbeddedValkey(tmp_path).start()
    client = connect(server.url, role="test")
    events = Events(client, pool)
    with events.subscribe() as listener:
        fd = listener.fileno()
        server.stop()
        server.start()
        heard = []
        until(lambda: heard.extend(listener.wait(0.2)) or {"kind": "reconnected"} in heard, what="the reconnection")
        events.publish({"after": 1})
        assert until(lambda: listener.wait(0.2)) == [{"after": 1}]
        assert listener.fileno() == fd, "a selector need not be told"
    client.close()
    server.stop()


def test_subscribing_while_redis_is_away_raises_nothing_and_hears_later(tmp_path, pool):
    server = EmbeddedValkey(tmp_path).start()
    client = connect(server.url, role="test")
    server.stop()
    with Events(client, pool).subscribe() as listener:
        assert listener.wait(0.01) == []
        server.start()
        events = Events(client, pool)
        until(lambda: events.poke() or {"kind": "poke"} in listener.wait(0.05), what="a hint heard")
    client.close()
    server.stop()


def test_a_closed_subscription_ends_its_thread_and_leaves_no_descriptor(events):
    listener = events.subscribe()
    thread, fd = listener._thread, listener.fileno()
    assert thread.is_alive() and os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventfd]"
    listener.close()
    listener.close()
    assert listener.read() == [] and listener.fileno() == -1
    until(lambda: not thread.is_alive(), what="the end of the thread")


def test_what_nobody_reads_is_bounded(events, monkeypatch):
    from vrampool.queueing import events as module

    monkeypatch.setattr(module, "BACKLOG", 10)
    with events.subscribe() as listener:
        for number in range(50):
            events.publish({"number": number})
        until(lambda: listener._events and listener._events[-1] == {"number": 49})
        assert listener.read() == [{"number": number} for number in range(40, 50)]


@pytest.fixture
def older_user(connection, valkey):
    """A connection of a user who may use one channel only, as `deploy/redis/users.acl` once had it; and its name."""
    connection.execute_command("ACL", "SETUSER", "older", "on", ">pw", "~*", "+@all", "resetchannels", "&*:events")
    client = connect(valkey.replace("unix://", "unix://older:pw@"), role="test")
    yield client
    client.close()
    connection.execute_command("ACL", "DELUSER", "older")


def test_a_user_without_the_newer_channels_hears_what_concerns_everybody(events, older_user, pool, caplog):
    with Events(older_user, pool).subscribe("w1") as listener:
        events.publish({"kind": "for all"})
        assert listener.wait(20) == [{"kind": "for all"}]
    assert "is not heard" in caplog.text


def test_a_call_that_may_not_be_sent_stops_nothing(older_user, connection, pool):
    """It is a hint: the trial is in the list, and workers look by themselves."""
    queue = JobQueue(older_user, pool, SIGNER)
    assert queue.enqueue([ticket(pool, 1)], workers=["w1"]) == ["sub1-1"]
    queue.call(["w1"])
    taken = take(older_user, pool, Offer("w1", "L1", 2_000, True, 60_000))
    execution = begin(older_user, pool, taken.job_id, "w1", 60)
    assert finish(older_user, pool, taken.job_id, "w1", execution, "finished") is True
    assert not connection.exists(Names(pool).live(taken.job_id))


def test_a_hint_that_nobody_can_hear_is_no_failure(tmp_path, pool):
    """What changed is in the storage already: a caller that got an error would do it again."""
    server = EmbeddedValkey(tmp_path / "valkey").start()
    events = Events(connect(server.url, role="test"), pool)
    server.stop()
    events.publish({"submission": "sub1", "state": "open"})
