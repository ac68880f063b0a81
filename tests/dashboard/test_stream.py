"""The stream: one poller for all who look, and nobody's slow line in another's way."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.made_up_pool import MadeUpPool
from support.waiting import until

from vrampool.dashboard import poller, stream
from vrampool.dashboard.stream import Client, Hub, dumps, encode
from vrampool.errors import UnreachableError


class Listener:
    """A page that is open, as a program."""

    def __init__(self, served) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        self._connection.request("GET", "/events")
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        self.ended = False

    def next(self, kind: str | None = None) -> tuple[str, dict]:
        """Return the next event, or the next one of a kind."""
        event = ""
        while line := self._answer.readline():
            word, _, rest = line.decode().strip().partition(": ")
            if word == "event":
                event = rest
            elif word == "data" and kind in (None, event):
                return event, json.loads(rest)
        self.ended = True
        return "", {}

    def close(self) -> None:
        self._connection.close()


def test_the_first_event_has_everything_and_the_next_what_is_new(serve):
    listener = Listener(serve(MadeUpPool(devices=2, slots=3, past_s=30)))
    kind, whole = listener.next()
    assert kind == "whole" and len(whole["devices"]) == 2 and len(whole["studies"]) == 3
    assert whole["waiting"][0]["why"] and whole["totals"]["running"] > 0
    news = [listener.next("devices")[1] for _ in range(3)]
    assert any(set(told.get("rows", {})) == {"node-a/GPU-0", "node-a/GPU-1"} for told in news)
    listener.close()


def test_many_who_look_cost_no_more_readings_than_one(serve, monkeypatch):
    monkeypatch.setattr(poller, "DEVICES_S", 0.2)
    feed = MadeUpPool(devices=1, slots=1, past_s=30)
    readings = []
    plain = feed.workers
    feed.workers = lambda: (readings.append(threading.get_ident()), plain())[1]
    served = serve(feed)
    listeners = [Listener(served) for _ in range(10)]
    before = len(readings)
    for _ in range(3):
        for listener in listeners:
            listener.next("devices")
    assert len(readings) - before <= 12, "each of the ten has seen three"
    assert len(set(readings)) == 1, "one thread reads"
    for listener in listeners:
        listener.close()


def test_nobody_looks_so_nothing_is_read(serve, monkeypatch):
    monkeypatch.setattr(poller, "_REST_AFTER_S", 0.2)
    monkeypatch.setattr(poller, "DEVICES_S", 0.05)
    served = serve(MadeUpPool(devices=1, past_s=30))
    event, pauses = served.dashboard.poller._devices._wake, []
    plain = event.wait
    event.wait = lambda pause_s=None: (pauses.append(pause_s), plain(pause_s))[1]
    event.set()  # it may rest already, in a wait that began before
    until(lambda: pauses and pauses[-1] is None, what="a thread that waits until it is woken")
    count = len(pauses)
    # What was read a moment ago is fresh enough: somebody asks until it is not.
    until(lambda: served.ask("/metrics").status == 200 and len(pauses) > count, what="a reading when somebody asks")


def test_the_server_ends_while_pages_are_open(serve):
    listener = Listener(serve())
    listener.next()
    # The fixture ends the server and fails when that does not work.


def test_too_many_pages_are_told_so(serve, monkeypatch):
    monkeypatch.setattr(stream, "MOST_CLIENTS", 2)
    served = serve()
    listeners = [Listener(served) for _ in range(2)]
    assert served.ask("/events").status == 503
    listeners[0].close()
    until(lambda: len(served.dashboard.hub) < 2, what="a place that is free again", timeout_s=20)
    listeners[1].close()


def test_redis_away_is_said_and_what_was_known_stays(serve):
    feed = MadeUpPool(devices=2, slots=3, past_s=30)
    served = serve(feed)
    listener = Listener(served)
    assert listener.next()[1]["faults"] == []
    feed.fault = UnreachableError("Redis does not answer")
    told = next(event for _, event in iter(lambda: listener.next("devices"), None) if event["faults"])
    assert told["faults"] == ["Redis does not answer (what is shown is old)"] and len(told["devices"]) == 2
    metrics = served.ask("/metrics").body.decode()
    assert "vrampool_redis_up 0.0" in metrics
    feed.fault = None
    assert next(event for _, event in iter(lambda: listener.next("devices"), None) if not event["faults"])
    listener.close()


def test_a_worker_that_fell_silent_stays_as_gone(serve):
    feed = MadeUpPool(devices=2, slots=3, past_s=30)
    listener = Listener(serve(feed))
    listener.next()
    feed.gone.add(1)
    told = next(e for _, e in iter(lambda: listener.next("devices"), None) if e["totals"]["devices"] == 1)
    assert [device["state"] for device in told["devices"]] == ["ready", "gone"]
    assert told["devices"][1]["trials"] == [] and "not heard" in told["devices"][1]["reason"]
    listener.close()


# ---- parts -------------------------------------------------------------------------------------------


def run(scenario):
    """Run a coroutine in a thread of its own: a browser of another test may have a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, scenario).result()


def test_a_client_that_does_not_read_is_sent_everything_anew_instead_of_what_it_missed():
    async def scenario() -> list[bytes]:
        hub = Hub()
        hub.start()
        client = hub.join()
        assert client is not None
        whole = iter([b"whole 1", b"whole 2"])
        told = client.stream(lambda: next(whole))
        received = [await anext(told)]
        for number in range(1000):
            hub._publish(b"%d" % number)
        assert len(client._messages) < 100, "what waits is bounded"
        received.append(await anext(told))
        client.close()
        return received

    assert run(scenario()) == [b"retry: 1000\n\nwhole 1", b"whole 2"]


def test_a_message_is_made_once_for_all():
    async def scenario() -> None:
        hub = Hub()
        hub.start()
        clients: list[Client | None] = [hub.join(), hub.join()]
        hub.publish_soon("devices", {"a": 1})
        turned = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turned.set_result, None)
        await turned
        first, second = (client._messages[0] for client in clients if client is not None)
        assert first is second

    run(scenario())


def test_numbers_that_json_does_not_know_become_null():
    assert dumps({"a": [math.inf, math.nan, 1.5]}) == b'{"a":[null,null,1.5]}'


@pytest.mark.parametrize("text", ["\n\nevent: whole\ndata: {}\n\n", "\r\ndata: x", "</script>"])
def test_a_study_name_cannot_forge_an_event(text):
    told = encode("studies", {"name": text}).decode()
    assert told.count("\n") == 3 and "\r" not in told
    assert json.loads(told.partition("data: ")[2]) == {"name": text}
