"""Which events make a worker ask the queue: what concerns everybody is heard by hundreds that have room."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vrampool_worker.listener import Listener


@pytest.fixture
def heard(tmp_path: Path):
    """A function that lets a worker's listener hear events, and returns how often its loop was woken."""

    def hear(*events: dict[str, Any]) -> int:
        wakes: list[None] = []
        loop = SimpleNamespace(
            settings=SimpleNamespace(state_dir=tmp_path),
            device=SimpleNamespace(id="GPU-0"),
            name="w0",
            wake=lambda: wakes.append(None),
        )
        listener = Listener(loop, SimpleNamespace(read=lambda: list(events)), SimpleNamespace(last_s=0.0))
        listener._hear()
        return len(wakes)

    return hear


@pytest.mark.parametrize("kind", ["enqueued", "put_back", "given_back", "earmark_ended", "reconnected", "poke"])
def test_a_worker_asks_when_there_may_be_something_to_take(heard, kind):
    assert heard({"kind": kind}) == 1


def test_a_worker_does_not_ask_because_a_trial_ended_or_left_room_elsewhere(heard):
    assert heard({"kind": "told"}) == 0
    assert heard({"kind": "room"}) == 0
    assert heard() == 0


def test_it_asks_once_for_all_that_it_heard_together(heard):
    assert heard({"kind": "told"}, {"kind": "enqueued"}, {"kind": "enqueued"}) == 1


def test_a_submission_that_moved_makes_it_ask(heard):
    assert heard({"submission": "sub1", "state": "open"}) == 1
