"""Why a trial waits, in a sentence."""

from __future__ import annotations

import dataclasses

import pytest
from support.made_up_pool import MadeUpPool

from vrampool.dashboard.waits import next_rows, waiting_rows, why_waits
from vrampool.queueing import WaitingJob
from vrampool.units import GIB

NOW = 1_000.0


@pytest.fixture(scope="module")
def workers():
    first, second = MadeUpPool(devices=2, slots=2, past_s=20).workers()
    return [dataclasses.replace(first, reason="GPU 0 has 9.1 GiB free", free_bytes=9 * GIB), second]


def job(**changes: object) -> WaitingJob:
    return dataclasses.replace(WaitingJob("sub-3", "sub", 3, 20 * GIB, NOW - 5), **changes)


def test_the_ledger_with_the_most_room_speaks_and_the_others_are_counted(workers):
    roomy = [dataclasses.replace(workers[0], free_bytes=99 * GIB), workers[1]]
    assert why_waits(job(), roomy, NOW) == "GPU 0 has 9.1 GiB free; 1 more device has no more"


def test_devices_of_several_hosts_are_told_apart(workers):
    roomy = [dataclasses.replace(workers[0], free_bytes=99 * GIB), dataclasses.replace(workers[1], host="node-z")]
    assert why_waits(job(), roomy, NOW).startswith("node-a: GPU 0")


def test_without_a_worker_it_says_how_to_start_one():
    assert "vrampool worker --gpu all" in why_waits(job(), [], NOW)


def test_a_submission_that_every_worker_refuses_tells_the_reason(workers):
    refusing = [dataclasses.replace(item, refused={"sub": "it needs Python 3.12"}) for item in workers]
    assert why_waits(job(), refusing, NOW) == "no worker can run it: it needs Python 3.12"
    one = [refusing[0], workers[1]]
    assert "Python" not in why_waits(job(), one, NOW), "the other worker may take it"


def test_workers_that_take_nothing_now_say_so(workers):
    paused = [dataclasses.replace(item, state="paused", reason="for a reboot") for item in workers]
    assert "is paused: for a reboot" in why_waits(job(), paused, NOW)


def test_more_than_the_largest_device_is_said_as_such(workers):
    assert "more than the largest device" in why_waits(job(vram_bytes=500 * GIB), workers, NOW)


def test_a_device_it_keeps_away_from_is_named_with_the_time_left(workers):
    avoiding = job(avoid=(workers[1].device_id,), avoid_until=NOW + 12)
    text = why_waits(avoiding, workers, NOW)
    assert "GPU 0 has 9.1 GiB free" in text and "for 12 s more" in text
    assert "keeps away" not in why_waits(avoiding, workers, NOW + 20)


def test_a_row_has_what_the_page_shows(workers):
    (row,) = waiting_rows([job(vram_bytes=None)], workers, {"sub": "digits"}, NOW)
    assert (row["study"], row["number"], row["asks_bytes"], row["since"]) == ("digits", 3, None, NOW - 5)
    assert row["why"]


# ---- studies that want more and have no trial that waits ----------------------------------------------

STUDY = {
    "name": "digits",
    "submission": "sub",
    "state": "open",
    "wanted": 10,
    "finished": 3,
    "running": 2,
    "waiting": 0,
    "vram": 20 * GIB,
}


def why_next(workers, **changes):
    return [row["why"] for row in next_rows([{**STUDY, **changes}], workers, NOW)]


def test_the_next_trial_of_a_study_tells_which_room_it_wants(workers):
    full = [dataclasses.replace(item, free_bytes=GIB) for item in workers]
    (why,) = why_next(full)
    assert why.startswith("it is asked for when a device has room: ") and "free" in why


def test_where_there_is_room_the_next_trial_is_about_to_come(workers):
    roomy = [dataclasses.replace(workers[0], free_bytes=30 * GIB, slots=99)]
    assert why_next(roomy) == ["it is about to be asked for"]
    assert why_next([dataclasses.replace(roomy[0], state="paused", reason="by ada")])[0].startswith("no worker takes")
    assert "no worker is running" in why_next([])[0]


@pytest.mark.parametrize("changes", [{"waiting": 1}, {"wanted": 5}, {"state": "done"}, {"state": "stopping"}])
def test_a_study_that_wants_no_more_or_has_one_that_waits_needs_no_row(workers, changes):
    assert why_next(workers, **changes) == []
