"""How a command reaches a worker that may miss it: asked again until it obeys, with the test in the worker's place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.valkey import SIGNER

from vrampool.cli import operate
from vrampool.errors import InputError, VrampoolError
from vrampool.queueing import Events, Registry, RunningTrial, WorkerRecord, connect
from vrampool.settings import Settings, load_settings

SECRET = "a secret for tests only, 32 bytes"


@pytest.fixture
def settings(valkey: str, pool_name: str, tmp_path: Path) -> Settings:
    flags = {"redis": valkey, "pool": pool_name, "state_dir": tmp_path, "secret": SECRET}
    return load_settings(flags, env={})


@pytest.fixture
def tell(settings: Settings) -> Callable[..., None]:
    """A function that tells the pool of a worker, as its beat does."""
    registry = Registry(connect(settings.redis, role="test"), settings.pool)

    def beat(name: str, *, running: int = 0, host: str = "elsewhere") -> None:
        trials = tuple(RunningTrial("digits", number, 1, None, 0.0) for number in range(running))
        registry.beat(WorkerRecord(name, host, 1, f"GPU-{name}", name, "cuda", 9, 8, 8, 4, "ready", running=trials), 60)

    beat.remove = registry.remove  # type: ignore[attr-defined]
    return beat


class Listener:
    """Hears commands as a worker does, and obeys from the one on that it shall."""

    def __init__(self, settings: Settings, name: str, obeys_from: int) -> None:
        self.heard: list[dict] = []
        self._name = name
        self._obeys_from = obeys_from
        self._events = Events(connect(settings.redis, role="test"), settings.pool, SIGNER)
        self._subscription = self._events.subscribe()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._closed.is_set():
            for event in self._subscription.wait(0.1):
                if self._name in event.get("workers", ()):
                    self.heard.append(event)
                    if len(self.heard) >= self._obeys_from:
                        self._events.publish({"kind": "obeyed", "id": event["id"], "worker": self._name})

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._thread.join()
        self._subscription.close()


def test_a_command_is_sent_again_until_it_is_obeyed(settings, tell, monkeypatch):
    monkeypatch.setattr(operate, "AGAIN_S", 0.2)
    tell("w1")
    with Listener(settings, "w1", obeys_from=3) as worker:
        assert operate.Operator(settings).send("pause", ["w1"], False) == ["w1"]
    assert [event["command"] for event in worker.heard] == ["pause"] * 3
    assert len({event["id"] for event in worker.heard}) == 1, "one command, said three times"


def test_a_worker_that_never_answers_is_named(settings, tell, monkeypatch):
    monkeypatch.setattr(operate, "AGAIN_S", 0.1)
    monkeypatch.setattr(operate, "ANSWER_S", 0.5)
    tell("w1")
    tell("w2")
    with Listener(settings, "w1", obeys_from=1), pytest.raises(VrampoolError, match=r"no answer from w2 within"):
        operate.Operator(settings).send("drain", [], True)


def test_one_that_ends_meanwhile_need_not_obey(settings, tell, monkeypatch):
    monkeypatch.setattr(operate, "AGAIN_S", 0.1)
    tell("w1")
    with Listener(settings, "w1", obeys_from=99) as worker:
        threading.Timer(0.4, tell.remove, ("w1",)).start()
        operate.Operator(settings).send("drain", ["w1"], False)
    assert worker.heard


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["a1"], ["a1"]), (["host-a"], ["a1", "a2"]), (["GPU-b1"], ["b1"]), (["host-a", "a1", "b1"], ["a1", "a2", "b1"])],
    ids=["name", "host", "device", "several"],
)
def test_workers_are_meant_by_name_by_host_or_by_device(settings, tell, words, expected):
    for name, host in (("a1", "host-a"), ("a2", "host-a"), ("b1", "host-b")):
        tell(name, host=host)
    pool = operate.Operator(settings)
    assert pool.chosen(words, False) == expected
    assert pool.chosen([], True) == ["a1", "a2", "b1"]
    assert pool.chosen([], False) == [], "none of them runs here"
    with pytest.raises(InputError, match="is called 'c1'; workers: a1, a2, b1"):
        pool.chosen(["a1", "c1"], False)


def test_waiting_ends_when_nothing_runs_and_says_what_runs_when_the_time_is_up(settings, tell, monkeypatch):
    monkeypatch.setattr(operate, "LOOK_S", 0.05)
    pool = operate.Operator(settings)
    tell("w1", running=2)
    tell("w2", running=1)
    with pytest.raises(VrampoolError, match=r"after 0.2 s there still run: digits/0, digits/1$"):
        pool.wait_until_empty(["w1"], 0.2)
    threading.Timer(0.3, tell, ("w1",)).start()
    pool.wait_until_empty(["w1"], 30)
    pool.wait_until_empty(["gone"], 30)
