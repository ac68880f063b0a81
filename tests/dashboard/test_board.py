"""The board: one state for all who look."""

from __future__ import annotations

import time

import pytest
from support.made_up_pool import MadeUpPool

from vrampool.dashboard.board import GONE_SHOWN_S, Board


class Skewed(MadeUpPool):
    """A pool whose Redis has another clock than the dashboard."""

    skew_s = 0.0

    def samples(self, device_id, since):
        found = super().samples(device_id, since - self.skew_s if since else 0.0)
        return [{**sample, "at": sample["at"] + self.skew_s} for sample in found]


@pytest.mark.parametrize("skew_s", [-3600.0, 0.0, 45.0])
def test_curves_end_at_now_whatever_the_clocks_of_the_machines_say(skew_s):
    feed = Skewed(devices=1, slots=2, past_s=30)
    feed.skew_s = skew_s
    board = Board(feed)
    told = board.look_at_devices()
    newest = board.history("node-a/GPU-0", 300)["rows"][-1][0]
    assert -0.5 <= told["now"] - newest < 3
    assert told["devices"][0]["trials"], "and devices are there"


def test_a_worker_that_takes_a_device_over_goes_on_with_its_curve(monkeypatch):
    feed = MadeUpPool(devices=1, slots=3, past_s=60)
    board = Board(feed)
    board.look_at_devices()
    before = board.history("node-a/GPU-0", 300)["rows"]
    feed._name = lambda place: "node-a-0-successor"
    feed._at -= 1.0  # the next samples are the successor's
    told = board.look_at_devices()
    assert [device["worker"] for device in told["devices"]] == ["node-a-0-successor"]
    after = board.history("node-a/GPU-0", 300)["rows"]
    assert after[: len(before) - 2] == before[: len(before) - 2] and len(after) >= len(before)


def test_workers_that_share_a_device_have_a_card_and_a_curve_each():
    feed = MadeUpPool(devices=2, slots=2, past_s=60)
    plain_workers, plain_samples = feed.workers, feed.samples
    import dataclasses

    feed.workers = lambda: [dataclasses.replace(item, device_id="GPU-0") for item in plain_workers()]
    feed.samples = lambda _id, since: sorted(
        [*plain_samples("GPU-0", since), *plain_samples("GPU-1", since)], key=lambda sample: sample["at"]
    )
    board = Board(feed)
    told = board.look_at_devices()
    assert [device["key"] for device in told["devices"]] == ["node-a-0-abc123", "node-a-1-abc123"]
    numbers = []
    for device in told["devices"]:
        history = board.history(device["key"], 300)
        numbers.append({(history["studies"][trial[0]], trial[1]) for row in history["rows"] for trial in row[5]})
    assert numbers[0] and numbers[1] and not numbers[0] & numbers[1]


def test_a_gone_device_leaves_after_a_while():
    feed = MadeUpPool(devices=2, slots=2, past_s=20)
    now = [time.time()]
    board = Board(feed, clock=lambda: now[0])
    board.look_at_devices()
    feed.gone.add(1)
    assert [item["state"] for item in board.look_at_devices()["devices"]] == ["ready", "gone"]
    now[0] += GONE_SHOWN_S + 60
    board._seen["node-a/GPU-0"].heard_at = now[0]
    assert [item["device"] for item in board.look_at_devices()["devices"]] == ["GPU-0"]
    assert board.history("node-a/GPU-1", 300) is None


def test_an_unknown_device_or_window_has_no_history():
    board = Board(MadeUpPool(devices=1, past_s=10))
    board.look_at_devices()
    assert board.history("node-a/GPU-0", 300) and board.history("node-a/GPU-0", 7) is None
    assert board.history("elsewhere", 300) is None
