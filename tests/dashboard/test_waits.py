"""Why a trial waits, in a sentence."""

from __future__ import annotations

import dataclasses

import pytest
from support.made_up_pool import MadeUpPool

from vrampool.dashboard.waits import next_rows, waiting_rows
from vrampool.queueing import WaitingJob
from vrampool.units import GIB
from vrampool.waiting import why_each_waits

NOW = 1_000.0


@pytest.fixture(scope="module")
def workers():
    first, second = MadeUpPool(devices=2, slots=2, past_s=20).workers()
    return [dataclasses.replace(first, reason="GPU 0 has 9.1 GiB free", free_bytes=9 * GIB), second]


def job(**changes: object) -> WaitingJob:
    return dataclasses.replace(WaitingJob("sub-3", "sub", 3, 20 * GIB, NOW - 5), **changes)


def test_each_trial_has_the_sentence_that_why_prints(workers):
    jobs = [job(), job(job_id="sub-4", number=4, vram_bytes=500 * GIB)]
    rows = waiting_rows(jobs, workers, {})
    assert [row["why"] for row in rows] == list(why_each_waits(jobs, workers).values())
    assert rows[0]["why"] != rows[1]["why"]


def test_a_row_has_what_the_page_shows(workers):
    (row,) = waiting_rows([job(vram_bytes=None)], workers, {"sub": "digits"})
    assert (row["study"], row["number"], row["asks_bytes"], row["since"]) == ("digits", 3, None, NOW - 5)
    assert row["why"]
    (row,) = waiting_rows([job(study="digits")], workers, {})
    assert row["study"] == "digits", "the job itself knows, before the studies are read"


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
    "next_bytes": None,
}


def why_next(workers, **changes):
    return [row["why"] for row in next_rows([{**STUDY, **changes}], workers, NOW)]


def test_the_next_trial_of_a_study_tells_which_room_it_wants(workers):
    full = [dataclasses.replace(item, free_bytes=GIB) for item in workers]
    (why,) = why_next(full)
    assert why.startswith("it is asked for when a device has room; until then it waits for ") and "free" in why


def test_of_a_study_whose_requests_are_learned_the_next_trial_will_ask_for_about_what_the_last_one_did(workers):
    full = [dataclasses.replace(item, free_bytes=GIB) for item in workers]
    (row,) = next_rows([{**STUDY, "vram": None, "next_bytes": 3 * GIB}], full, NOW)
    assert (row["asks_bytes"], row["about"]) == (3 * GIB, True)
    assert "waits for 3.0 GiB" in row["why"]
    (row,) = next_rows([{**STUDY, "vram": None}], full, NOW)
    assert row["asks_bytes"] is None and "a device of its own" in row["why"]


def test_where_there_is_room_the_next_trial_is_about_to_come(workers):
    roomy = [dataclasses.replace(workers[0], free_bytes=30 * GIB, slots=99)]
    assert why_next(roomy) == ["it is about to be asked for"]
    assert (
        why_next([dataclasses.replace(roomy[0], state="paused", reason="by ada")])[0] != "it is about to be asked for"
    )
    assert "no worker is running" in why_next([])[0]


@pytest.mark.parametrize("changes", [{"waiting": 1}, {"wanted": 5}, {"state": "done"}, {"state": "stopping"}])
def test_a_study_that_wants_no_more_or_has_one_that_waits_needs_no_row(workers, changes):
    assert why_next(workers, **changes) == []
