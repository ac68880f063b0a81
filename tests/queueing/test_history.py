"""The rings of samples and releases."""

from __future__ import annotations

import pytest

from vrampool.queueing import History
from vrampool.queueing import history as module
from vrampool.queueing.names import Names


@pytest.fixture
def history(connection, pool) -> History:
    return History(connection, pool)


def test_samples_come_back_in_order_with_their_time_for_each_device(history):
    for used in (1, 2):
        history.add_sample("GPU-a", {"used_bytes": used})
    history.add_sample("GPU-b", {"used_bytes": 9})
    found = history.samples("GPU-a")
    assert [sample["used_bytes"] for sample in found] == [1, 2] and found[0]["at"] > 1_600_000_000
    assert history.samples("GPU-c") == []


def test_samples_since_a_time_leave_out_the_older(history, connection, pool):
    connection.xadd(Names(pool).samples_prefix + "GPU-a", {"json": '{"used_bytes":0}'}, id="5000-0")
    history.add_sample("GPU-a", {"used_bytes": 1})
    assert [sample["used_bytes"] for sample in history.samples("GPU-a", since=6.0)] == [1]
    assert [sample["used_bytes"] for sample in history.samples("GPU-a")] == [0, 1]
    assert [sample["used_bytes"] for sample in history.samples("GPU-a", limit=1)] == [1], "the newest are kept"


def test_releases_of_one_study(history):
    for study in ("digits", "other", "digits"):
        history.add_release({"study": study, "residue_bytes": 0})
    assert len(history.releases("digits")) == 2 and len(history.releases()) == 3


def test_the_rings_are_bounded_and_end_when_nobody_writes(history, connection, pool, monkeypatch):
    """Redis trims in blocks of about a hundred, which is cheap; the bound holds within one block."""
    monkeypatch.setattr(module, "SAMPLES_KEPT", 200)
    monkeypatch.setattr(module, "RELEASES_KEPT", 200)
    for number in range(1_000):
        history.add_sample("GPU-a", {"number": number})
        history.add_release({"study": "digits", "number": number})
    for key in (Names(pool).samples_prefix + "GPU-a", Names(pool).releases):
        assert 200 <= connection.xlen(key) <= 320
        assert 0 < connection.ttl(key) <= module.KEPT_S
    assert history.samples("GPU-a", limit=10_000)[-1]["number"] == 999
