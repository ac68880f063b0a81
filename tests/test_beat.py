"""When a worker tells the coordinator what it can take."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from support.valkey import until
from support.workers import record

from vrampool_worker.beat import Beat, Heard, Held


class Told:
    """Redis, as far as the beat knows it: notes what was told and when."""

    def __init__(self) -> None:
        self.beats: list[float] = []
        self.news_at: list[tuple[float, int]] = []

    def beat(self, held: Held) -> Heard:
        self.beats.append(time.monotonic())
        return Heard()

    def news(self, held: Held) -> None:
        self.news_at.append((time.monotonic(), held.record.free_bytes))


def test_news_are_told_at_once_and_the_next_ones_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with room stands still until the coordinator knows; a burst of trials is one message all the same."""
    monkeypatch.setattr(Beat, "NEWS_S", 1.0)
    told = Told()
    held = Held(record("w0"))
    beat = Beat(told, held, interval_s=60, ttl_s=120, on_heard=lambda heard: None)
    beat.start()
    try:
        until(lambda: told.beats and time.monotonic() > told.beats[0] + 1.0, what="the pause after the beat")
        told_s = time.monotonic()
        for free_bytes in range(3):
            beat.tell(Held(replace(held.record, free_bytes=free_bytes)))
            if free_bytes == 0:
                until(lambda: told.news_at, what="the first news")
        until(lambda: told.news_at[-1][1] == 2, what="the last news")
    finally:
        beat.stop()
    (first_s, _), *others = told.news_at
    assert first_s < told_s + 0.9
    assert len(others) == 1 and others[0][0] >= first_s + 0.9
