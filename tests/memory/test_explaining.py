"""The figures that explain a study's memory."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("sklearn", reason="learning needs the extra `learn`")

from support.studies import attempt

from vrampool.measured import trial_memory
from vrampool.memory import explaining
from vrampool.memory.explaining import TrialMemory, explain
from vrampool.memory.peaks import PastPeak, Taught
from vrampool.units import GIB, MIB


def row(number, **more):
    params = {"batch": 8 * (number + 1), "lr": 0.1}
    peak = GIB + (number + 1) * GIB // 4
    known = {"peak_bytes": peak, "lease_bytes": 3 * peak, "reserved_bytes": 2 * peak, "run_s": 2.0}
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


def test_modules_that_were_imported_ahead_in_vain_are_seen_by_what_trials_held_with_and_without():
    def found(with_bytes: int, without_bytes: int, count: int = 4) -> int | None:
        rows = [row(number, ahead=True, peak_bytes=with_bytes + number * MIB) for number in range(count)]
        rows += [row(10 + number, ahead=False, peak_bytes=without_bytes + number * MIB) for number in range(count)]
        return explaining.record_of(rows).ahead_bytes

    assert found(260 * MIB, 50 * MIB) == 210 * MIB
    assert found(260 * MIB, 250 * MIB) is None, "it imports them itself"
    assert found(260 * MIB, 50 * MIB, count=2) is None, "too few to say"
    assert explaining.record_of([row(number, peak_bytes=GIB) for number in range(9)]).ahead_bytes is None, "on a GPU"


def test_what_was_lent_is_not_reserved():
    """It is called back when another trial wants it. A lease that was made smaller keeps less from others, too."""
    facts = {"device": "cpu", "peak_bytes": 200 * MIB, "import_s": 3.0}
    lent = attempt(request_bytes=300 * MIB, lease_bytes=900 * MIB, lease_at_end_bytes=900 * MIB, **facts)
    shrunk = attempt(request_bytes=300 * MIB, lease_bytes=300 * MIB, lease_at_end_bytes=250 * MIB, **facts)
    grown = attempt(request_bytes=100 * MIB, lease_bytes=250 * MIB, lease_at_end_bytes=250 * MIB, **facts)
    alone = attempt(request_bytes=None, lease_bytes=20 * GIB, lease_at_end_bytes=400 * MIB, **facts)
    rows = [trial_memory(trial) for trial in (lent, shrunk, grown, alone)]
    assert [item.reserved_bytes for item in rows] == [300 * MIB, 250 * MIB, 200 * MIB, 400 * MIB]
    assert all(item.ahead for item in rows)
    assert explaining.record_of(rows).over_reserved == pytest.approx(1150 / 800 - 1)
    assert trial_memory(attempt(device="cpu", import_s=0.0)).ahead is False
    assert trial_memory(attempt(import_s=3.0)).ahead is None, "the card has none of them"


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
