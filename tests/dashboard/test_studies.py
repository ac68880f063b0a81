"""What the page says of a study."""

from __future__ import annotations

import json

import pytest
from support.made_up_pool import MadeUpPool

from vrampool.dashboard import memories
from vrampool.dashboard.board import Board
from vrampool.dashboard.memories import MOST_POINTS, Memories
from vrampool.dashboard.studies import study_view
from vrampool.dashboard.tallies import Tally, total_of
from vrampool.measured import trial_memory
from vrampool.memory.explaining import explain
from vrampool.storage import ATTEMPT


@pytest.fixture(scope="module")
def readings():
    return MadeUpPool(devices=1, past_s=10, finished=60).studies()


def view(reading):
    tally = Tally()
    tally.add(reading.trials)
    return study_view(reading, tally, Memories())


def test_progress_counts_root_trials_and_retries_once(readings):
    told = view(readings[0])
    assert told["wanted"] == 200 and told["running"] == 12 and told["state"] == "open"
    assert told["retries"] == 4 and told["attempts"] == 73
    assert told["finished"] == sum(told["counts"].values()) == 56, "an attempt that was tried again is not counted"


def test_out_of_memory_errors_are_told_by_verdict(readings):
    assert view(readings[0])["verdicts"] == {"victim": 2, "culprit": 2}


def test_the_best_so_far_follows_the_direction(readings):
    falling, rising = view(readings[0]), view(readings[2])
    for told, best in ((falling, min), (rising, max)):
        assert told["best"]["value"] == best(value for _, value, _, _ in told["values"])
        news = [value for _, value, _, new in told["values"] if new]
        assert news == sorted(news, reverse=best is min) and news[-1] == told["best"]["value"]
        assert [at for at, *_ in told["values"]] == sorted(at for at, *_ in told["values"])


def test_several_objectives_show_the_front_instead_of_a_best(readings):
    told = view(readings[1])
    assert told["best"] is None and told["front"] == sum(front for *_, front in told["values"]) > 0
    on_front = [(x, y) for x, y, _, front in told["values"] if front]
    assert not any(a > x and b < y for x, y in on_front for a, b, _, _ in told["values"])


def test_what_was_predicted_and_asked_for_stands_against_what_was_measured(readings):
    told = view(readings[0])
    assert told["alone"] == 3, "the first ones asked for a whole device: nothing was predicted"
    points = told["memory"]
    assert all(oom or peak <= asked for _, _, asked, peak, oom, _ in points)
    assert sum(oom for *_, oom, _ in points) == 4
    assert all(at_least for *_, oom, at_least in points if oom), "what ran out has shown a lower bound only"
    assert {predicted is None for number, predicted, *_ in points if number < 20} == {True}
    assert all(predicted < asked for number, predicted, asked, *_ in points if number >= 20)


def test_the_page_and_vrampool_explain_tell_the_same_of_a_studys_memory(readings):
    told = view(readings[0])
    found = explain([trial_memory(trial) for trial in readings[0].trials]).record
    assert told["predicted"] == found.predicted > 30
    assert told["prediction_error"] == pytest.approx(found.median_error, abs=1e-4)
    assert told["over_reserved"] == pytest.approx(found.over_reserved, abs=1e-4)
    assert told["asked_too_little"] == found.under


def test_a_finished_trial_is_read_once_and_a_study_made_anew_is_read_anew(readings, monkeypatch):
    read = []
    monkeypatch.setattr(memories, "trial_memory", lambda trial: read.append(trial.number) or trial_memory(trial))
    kept, trials = Memories(), readings[2].trials
    assert kept.add(trials[:50]) == Memories().add(trials[:50])
    read.clear()
    kept.add(trials[:50])
    assert read == []
    kept.add(trials[:52])
    assert read == [50, 51]
    read.clear()
    kept.add(trials[:3])
    assert read == [0, 1, 2]


def test_ten_thousand_trials_become_a_bounded_message_that_keeps_every_new_best():
    reading = MadeUpPool(devices=1, past_s=10, finished=10_000).studies()[0]
    told = view(reading)
    assert len(told["values"]) <= 2 * MOST_POINTS and len(told["memory"]) <= 2 * MOST_POINTS
    assert told["values"][-1][0] == max(at for at, *_ in told["values"])
    assert told["best"]["value"] == min(value for _, value, _, _ in told["values"])
    assert len(json.dumps(told)) < 100_000


def test_values_that_are_no_numbers_leave_the_page_whole():
    reading = MadeUpPool(devices=1, past_s=10, finished=60).studies()[0]
    reading.trials[0].values = [float("inf")]
    told = view(reading)
    assert json.dumps(told, allow_nan=False)
    assert 0 not in {number for _, _, number, _ in told["values"]}


def test_a_tally_counts_each_attempt_once_however_often_it_is_read(readings):
    tally = Tally()
    for _ in range(3):
        tally.add(readings[0].trials)
    assert sum(tally.states.values()) == 60 and tally.retries == 4 and tally.started == 60
    whole = total_of([tally, tally])
    assert whole.retries == 8 and whole.start_s == pytest.approx(2 * tally.start_s)


def test_an_attempt_without_facts_counts_as_lost_or_cancelled(readings):
    trial = readings[2].trials[0]
    facts = trial.user_attrs.pop(ATTEMPT)
    try:
        tally = Tally()
        tally.add([trial])
        assert tally.ends == {"cancelled": 1}
    finally:
        trial.user_attrs[ATTEMPT] = facts


def test_a_study_that_did_not_change_is_not_sent_again():
    feed = MadeUpPool(devices=1, past_s=10)
    fixed = feed.studies()
    feed.studies = lambda: fixed
    board = Board(feed)
    assert {item["name"] for item in board.look_at_studies()["studies"]} == {item.name for item in fixed}
    assert board.look_at_studies() is None
