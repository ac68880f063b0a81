"""No spare is made that no trial can use: not beside the last trials of a study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from vrampool.queueing import Demand
from vrampool.signing import Signer
from vrampool_worker.attempts import Stage
from vrampool_worker.outlook import Outlook
from vrampool_worker.queue_port import QueuePort


@dataclass
class Loop:
    """What an outlook sees of a worker's loop; the queue answers when a test says so."""

    attempts: dict[str, Any] = field(default_factory=dict)
    asked: list[Callable[..., None]] = field(default_factory=list)
    woken: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port = SimpleNamespace(more_than=None)
        self.queue_lane = SimpleNamespace(submit=lambda work, then: self.asked.append(then))
        self.timers = SimpleNamespace(at=lambda when_s, call: self.woken.append(when_s))

    def run(self, name: str, taken_at_s: float, stage: Stage = Stage.RUNNING, most: int | None = None) -> None:
        spec = SimpleNamespace(max_concurrent_trials=most)
        self.attempts[name] = SimpleNamespace(stage=stage, taken_at_s=taken_at_s, spec=spec)

    def answer(self, more: bool | None, error: BaseException | None = None) -> None:
        self.asked.pop()(more, error)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.mark.parametrize("more", [True, False, None], ids=["more", "last", "unknown"])
def test_a_spare_is_needed_while_more_trials_are_to_come_than_run(loop, more):
    outlook = Outlook(loop)
    loop.run("a", 99.0)
    loop.run("b", 100.0, Stage.OPENING)
    loop.run("c", 90.0, Stage.TOLD)
    assert not outlook.needed(100.05), "the coordinator may not have told yet"
    assert (loop.asked, loop.woken) == ([], [100.1])
    assert not outlook.needed(100.2) and not outlook.needed(100.2)
    loop.answer(more)
    assert loop.asked == [], "it was asked once"
    assert outlook.needed(100.3) is (more is not False)


def test_an_old_answer_is_asked_for_again_and_so_is_one_from_before_the_last_trial(loop):
    outlook = Outlook(loop)
    loop.run("a", 100.0)
    outlook.needed(100.2)
    loop.answer(True)
    assert outlook.needed(101.0) and not outlook.needed(102.0)
    loop.answer(True)
    assert outlook.needed(102.1)
    loop.run("b", 102.2)
    assert not outlook.needed(102.4)
    loop.answer(False)
    assert not outlook.needed(102.5) and loop.asked == []
    del loop.attempts["b"]
    assert not outlook.needed(102.6)
    loop.answer(True)
    assert outlook.needed(102.7)


def test_where_redis_does_not_answer_a_spare_is_needed(loop):
    outlook = Outlook(loop)
    loop.run("a", 100.0)
    outlook.needed(100.2)
    loop.answer(None, OSError("away"))
    assert outlook.needed(100.3)


def test_a_submission_that_bounds_its_trials_at_once_says_nothing_of_those_to_come(loop):
    loop.run("a", 100.0, most=1)
    assert Outlook(loop).needed(100.01) and loop.asked == []


def test_an_idle_worker_prepares_for_the_next_study_after_a_while(loop):
    outlook = Outlook(loop)
    assert outlook.needed(100.0), "a new one does so at once"
    loop.run("a", 100.0)
    outlook.needed(110.0)
    loop.attempts.clear()
    assert not outlook.needed(111.0) and outlook.needed(112.1)


def test_the_queue_is_asked_for_what_the_coordinator_has_told(connection):
    port = QueuePort(connection, "vrampool", "w1", Signer(b"s" * 32), execution_ttl_s=60)
    assert port.more_than(0) is None and port.more_than(2) is None
    Demand(connection, "vrampool").tell(3)
    assert [port.more_than(count) for count in (0, 2, 3, 4)] == [True, True, False, False]
