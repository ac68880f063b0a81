"""Events: hints that wake, commands that only a holder of the secret can give."""

from __future__ import annotations

import json
import os
import select
import threading
import time

import pytest
from support.valkey import SIGNER, until

from vrampool.errors import MessageError
from vrampool.local.embedded import EmbeddedValkey
from vrampool.queueing import Events, connect
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


def test_a_hint_that_nobody_can_hear_is_no_failure(tmp_path, pool):
    """What changed is in the storage already: a caller that got an error would do it again."""
    server = EmbeddedValkey(tmp_path / "valkey").start()
    events = Events(connect(server.url, role="test"), pool)
    server.stop()
    events.publish({"submission": "sub1", "state": "open"})
