"""A worker whose database is silent takes nothing and hands back what it has not begun.

With real hosts: `hosts/test_partitions.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from vrampool.messages import Ticket
from vrampool_worker.attempts import Attempt, Stage
from vrampool_worker.desk import NotOpened, Opened
from vrampool_worker.storage_watch import PATIENCE_S, StorageWatch


class Loop:
    """What the watch needs of a worker's main loop; lanes work when the test says so."""

    def __init__(self) -> None:
        self.attempts: dict[str, Attempt] = {}
        self.paused: str | None = None
        self.told: list[Any] = []
        self.lane: list[tuple[Callable[[], Any], Callable[[Any, Any], None]]] = []
        self.desk = SimpleNamespace(silent_s=0.0, fault="", open=self._open, hand_back=self._note("handed back"))
        self.ledger = SimpleNamespace(pause=self._note("paused"), cancel=self._note("cancelled"))
        self.port = SimpleNamespace(put_back=self._note("put back"))
        self.storage_lane = SimpleNamespace(submit=lambda work, then: self.lane.append((work, then)))
        self.result: Any = None
        self.look: Callable[[], None] = lambda: None

    def every(self, _pause_s: float, call: Callable[[], None]) -> None:
        self.look = call

    def wake(self) -> None:
        self.told.append(("woken",))

    def in_queue(self, work: Callable[[], Any], _what: str) -> None:
        work()

    def _note(self, word: str) -> Callable[..., None]:
        return lambda *args: self.told.append((word, *args))

    def _open(self, _ticket: Ticket, wanted: Callable[[], bool]) -> Any:
        self.told.append(("opened", wanted()))
        return self.result

    def storage_answers(self) -> None:
        while self.lane:
            work, then = self.lane.pop(0)
            then(work(), None)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def take(loop: Loop, watch: StorageWatch, heard: list[Any], *, taken_ago_s: float = PATIENCE_S) -> Attempt:
    ticket = Ticket(pool="p", study_name="s", submission_id="sub", number=3, trial_id=4, vram_bytes=1)
    attempt = Attempt("sub-3", "lease", ticket, time.monotonic() - taken_ago_s, 0.0)
    loop.attempts["lease"] = attempt
    watch.open(attempt, lambda _attempt, opened, _error: heard.append(opened))
    return attempt


def test_a_hiccup_changes_nothing(loop: Loop):
    watch, heard = StorageWatch(loop), []  # type: ignore[arg-type, var-annotated]
    take(loop, watch, heard)
    loop.desk.silent_s = PATIENCE_S - 0.1
    loop.look()
    loop.result = NotOpened("it is not waiting any more")
    loop.storage_answers()
    assert heard == [loop.result] and loop.told == [("opened", True)]


def test_after_that_it_takes_nothing_and_hands_back_what_waits_to_be_opened(loop: Loop):
    watch, heard = StorageWatch(loop), []  # type: ignore[arg-type, var-annotated]
    attempt = take(loop, watch, heard)
    young = Attempt("sub-4", "other", attempt.ticket, time.monotonic(), 0.0)
    runs = Attempt("sub-5", "third", attempt.ticket, 0.0, 0.0, stage=Stage.RUNNING)
    loop.attempts |= {"other": young, "third": runs}
    loop.desk.silent_s, loop.desk.fault = PATIENCE_S, "connection refused"
    loop.look()
    reason = "the study storage does not answer: connection refused"
    assert loop.told == [("paused", reason), ("cancelled", "lease"), ("put back", "sub-3", "lease")]
    assert watch.reason == reason and list(loop.attempts) == ["other", "third"]
    # It is back: whoever opens asks whether that is wanted yet.
    loop.told.clear()
    loop.desk.silent_s, loop.result = 0.0, NotOpened("it was handed back")
    loop.storage_answers()
    loop.look()
    assert loop.told == [("opened", False), ("paused", None), ("woken",)]
    assert heard == [] and watch.reason is None


def test_a_claim_that_was_made_in_that_moment_is_handed_back_at_no_charge(loop: Loop):
    watch, heard = StorageWatch(loop), []  # type: ignore[arg-type, var-annotated]
    attempt = take(loop, watch, heard)
    loop.desk.silent_s = PATIENCE_S
    loop.look()
    loop.result = Opened.__new__(Opened)
    loop.storage_answers()
    assert heard == [] and loop.told[-1] == ("handed back", attempt.ticket, attempt.dropped)


def test_a_trial_that_another_worker_got_before_it_was_opened_leaves_nothing_behind(loop: Loop):
    watch, heard = StorageWatch(loop), []  # type: ignore[arg-type, var-annotated]
    attempt = take(loop, watch, heard, taken_ago_s=0.0)
    attempt.dropped = "another worker holds its job"
    loop.result = NotOpened("it is not waiting any more")
    loop.storage_answers()
    assert loop.attempts == {} and ("cancelled", "lease") in loop.told and heard == []
