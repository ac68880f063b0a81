"""`/metrics`: what Prometheus reads."""

from __future__ import annotations

import dataclasses

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.made_up_pool import MadeUpPool

from vrampool.dashboard import metrics
from vrampool.dashboard.board import Board
from vrampool.messages import EndKind, Verdict
from vrampool.queueing import MpsState
from vrampool.units import MIB


@pytest.fixture(scope="module")
def board():
    board = Board(MadeUpPool(devices=2, slots=3, past_s=30))
    board.look_at_devices()
    board.look_at_studies()
    return board


def read(figures) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics.exposition(figures).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(found, name: str, **labels: str) -> float:
    return sum(v for (n, own), v in found.items() if n == name and set(labels.items()) <= set(own))


def test_devices_leases_and_what_is_measured(board):
    figures = board.figures()
    found = read(figures)
    assert total(found, "vrampool_trials_running") == sum(len(worker.running) for worker in figures.workers) > 0
    leases = sum(item.lease_bytes for worker in figures.workers for item in worker.running)
    assert total(found, "vrampool_lease_bytes") == leases
    assert 0 < total(found, "vrampool_measured_bytes") < leases
    assert total(found, "vrampool_trials_waiting") == 3
    assert total(found, "vrampool_device_state", state="ready") == 2
    assert total(found, "vrampool_residue_bytes") == 300 * MIB
    assert total(found, "vrampool_device_driver_reserved_bytes") == 2 * 600 * MIB


def test_mps_is_told_of_the_devices_that_were_asked_for_it():
    feed = MadeUpPool(devices=3, past_s=10)
    feed.mps = {0: MpsState("on", clients=2, outside={"train.py:objective": "a fault"}), 1: MpsState("off", "why")}
    board = Board(feed)
    board.look_at_devices()
    found = read(board.figures())
    on = {dict(labels)["device"]: value for (name, labels), value in found.items() if name == "vrampool_device_mps"}
    assert on == {"GPU-0": 1, "GPU-1": 0}
    assert total(found, "vrampool_mps_clients") == 2 and total(found, "vrampool_mps_objectives_outside") == 1


def test_ends_verdicts_retries_and_the_start_up_tax(board):
    found = read(board.figures())
    assert total(found, "vrampool_out_of_memory_total", verdict="culprit") == 5
    assert total(found, "vrampool_out_of_memory_total", verdict="victim") == 6
    assert total(found, "vrampool_attempts_ended_total") == 174
    assert total(found, "vrampool_retries_total") == 11
    assert total(found, "vrampool_startup_seconds_count") == 174
    assert total(found, "vrampool_startup_seconds_bucket", le="+Inf") == 174
    assert total(found, "vrampool_startup_seconds_bucket", le="0.5") == 174
    assert total(found, "vrampool_startup_seconds_bucket", le="0.2") == 0
    assert total(found, "vrampool_startup_seconds_sum") == pytest.approx(0.35 * 174, rel=0.1)


def test_labels_are_bounded_however_many_studies_and_devices_there_are(board):
    figures = board.figures()
    many = tuple({**figures.studies[0], "name": f"{'x' * 300}{number}"} for number in range(500))
    crowd = tuple(dataclasses.replace(figures.workers[0], name=f"w{n}", device_id=f"GPU-{n}") for n in range(2000))
    found = read(dataclasses.replace(figures, studies=many, workers=crowd))
    values = [value for _, labels in found for _, value in labels]
    assert max(map(len, values)) <= 80
    assert len({labels for name, labels in found if name == "vrampool_lease_bytes"}) == metrics.MOST_DEVICES
    assert len([name for name, _ in found if name == "vrampool_study_trials_wanted"]) <= metrics.MOST_STUDIES
    assert {dict(labels)["end"] for name, labels in found if name == "vrampool_attempts_ended_total"} == set(EndKind)
    assert {dict(labels)["verdict"] for name, labels in found if name == "vrampool_out_of_memory_total"} == set(Verdict)


def test_only_live_studies_have_figures_of_their_own(board):
    found = read(board.figures())
    names = {dict(labels)["study"] for name, labels in found if name == "vrampool_study_trials_finished"}
    assert names == {"resnet-cifar", "translation"}


def test_a_study_name_with_quotes_and_newlines_is_escaped(board):
    figures = board.figures()
    odd = {**figures.studies[0], "name": 'a"b\\c\nd'}
    found = read(dataclasses.replace(figures, studies=(odd,)))
    assert ("study", 'a"b\\c\nd') in [label for _, labels in found for label in labels]


def test_counters_never_fall_when_a_study_is_shown_no_more():
    feed = MadeUpPool(devices=1, past_s=10)
    board = Board(feed)
    board.look_at_studies()
    before = total(read(board.figures()), "vrampool_attempts_ended_total")
    kept = feed.studies()[:1]
    feed.studies = lambda: kept
    board.look_at_studies()
    assert total(read(board.figures()), "vrampool_attempts_ended_total") == before


def test_a_scrape_brings_the_board_up_to_date_though_nobody_looks(serve):
    answer = serve(MadeUpPool(devices=2, slots=3, past_s=30)).ask("/metrics")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name for family in text_string_to_metric_families(answer.body.decode())}
    assert {"vrampool_trials_waiting", "vrampool_startup_seconds", "vrampool_residue_bytes"} <= families
