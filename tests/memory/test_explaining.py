"""The figures that explain a study's memory."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("sklearn", reason="learning needs the extra `learn`")

from vrampool.memory import explaining
from vrampool.memory.explaining import TrialMemory, explain
from vrampool.memory.peaks import PastPeak, Taught
from vrampool.units import GIB


def row(number, **more):
    params = {"batch": 8 * (number + 1), "lr": 0.1}
    peak = GIB + (number + 1) * GIB // 4
    known = {"peak_bytes": peak, "lease_bytes": 2 * peak, "request_bytes": 2 * peak, "run_s": 2.0}
    past = PastPeak(peak, params=params, overhead_bytes=GIB // 2)
    return TrialMemory(number, "COMPLETE", params, **{"end": "complete", "past": past} | known | more)


def test_what_was_predicted_is_held_against_what_was_held():
    rows = [row(number) for number in range(10)]
    rows.append(row(10, predicted_bytes=int(1.1 * (GIB + 11 * GIB // 4)), refused=2))
    rows.append(row(11, end="oom", at_least=True))
    rows.append(row(12, end="infeasible", at_least=True))
    found = explain(rows)
    assert found.model is not None and found.model.trials == 13
    assert found.drivers[0].name == "batch"
    record = found.record
    assert (record.predicted, record.out_of_memory, record.infeasible, record.refused) == (1, 1, 1, 2)
    assert record.median_error == pytest.approx(0.1, abs=0.01)
    assert record.over_reserved == pytest.approx(1.0)
    assert json.loads(json.dumps(found.to_json()))["trials"][0]["peak_bytes"] == rows[0].peak_bytes


def test_what_the_coordinator_learns_from_is_what_the_model_rests_on():
    """A study with a single trial has a model, where earlier ones of the same code have taught it."""
    rows = [row(number) for number in range(10)]
    earlier = tuple(item.past for item in rows if item.past is not None)
    assert explain(rows[:1]).model is None
    model = explain(rows[:1], Taught((rows[0].past,), earlier)).model
    assert model is not None and (model.trials, model.others) == (11, 10)
    assert explain(rows, Taught(())).model is None, "and what it does not learn from is not learned from here"


def test_of_too_few_trials_it_says_so():
    assert "nothing is learned yet" in explain([row(0)]).note


def test_without_scikit_learn_it_names_the_remedy(monkeypatch):
    monkeypatch.setattr(explaining, "available", lambda: False)
    found = explain([row(number) for number in range(5)])
    assert found.model is None and "vrampool[learn]" in found.note
