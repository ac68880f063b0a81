"""Fits in the background: nobody waits, the newest peaks win, and a fit that fails costs nothing."""

from __future__ import annotations

import threading

import pytest
from support.waiting import until

pytest.importorskip("sklearn", reason="learning needs the extra `learn`")

from vrampool.memory.learning import fitting, learned
from vrampool.memory.learning.fitting import Fitter
from vrampool.memory.peaks import PastPeak
from vrampool.units import GIB

ROWS = [PastPeak(GIB * (1 + index), params={"batch": 16 * (1 + index)}) for index in range(6)]


@pytest.fixture
def fitter():
    made = Fitter()
    yield made
    made.close()


def test_the_newest_peaks_win_over_those_that_wait(fitter, monkeypatch):
    begun, go, seen = threading.Event(), threading.Event(), []

    def slow(peaks, *, before):
        seen.append(len(peaks))
        begun.set()
        assert go.wait(20)
        return len(peaks)

    monkeypatch.setattr(learned, "learn", slow)
    fitter.want("a", ROWS[:2])
    assert begun.wait(20)
    for count in (3, 4, 5):
        fitter.want("a", ROWS[:count])
    assert fitter.latest("a") is None, "nobody has waited"
    go.set()
    assert fitter.settle(20)
    assert seen == [2, 5]
    assert fitter.latest("a") == 5


def test_a_model_of_many_trials_rests_between_two_fits_and_holds_up_nobody_else(fitter, monkeypatch):
    """In a large pool there is always news, and fits would take the coordinator's interpreter for good."""
    many = [PastPeak(GIB, params={"batch": 16})] * fitting.SETTLED_TRIALS
    seen = []

    def quick(peaks, *, before):
        seen.append(len(peaks))
        return len(peaks)

    monkeypatch.setattr(learned, "learn", quick)
    monkeypatch.setattr(fitting, "rest_s", lambda peaks, took_s: 600.0 if len(peaks) >= len(many) else 0.0)
    fitter.want("large", many)
    assert fitter.settle(20)
    fitter.want("large", [*many, many[0]])
    for count in (3, 4):
        fitter.want("small", ROWS[:count])
        until(lambda count=count: fitter.latest("small") == count, what="the small one's fit")
    assert seen == [len(many), 3, 4] and fitter.latest("large") == len(many)


def test_what_is_little_known_is_fitted_at_once_and_no_rest_is_long():
    few, many = ROWS, [PastPeak(GIB)] * fitting.SETTLED_TRIALS
    bounds = [PastPeak(GIB, censored=True)] * fitting.SETTLED_TRIALS
    assert fitting.rest_s(few, 0.5) == fitting.rest_s(bounds, 0.5) == 0.0
    assert fitting.rest_s(many, 0.5) == 1.5 and fitting.rest_s(many, 60.0) == 10.0


def test_a_submission_that_ended_during_its_fit_leaves_nothing(fitter, monkeypatch):
    begun, go = threading.Event(), threading.Event()

    def slow(peaks, *, before):
        begun.set()
        assert go.wait(20)
        return "model"

    monkeypatch.setattr(learned, "learn", slow)
    fitter.want("a", ROWS)
    assert begun.wait(20)
    fitter.forget("a")
    go.set()
    assert fitter.settle(20)
    assert fitter.latest("a") is None


def test_a_fit_that_fails_leaves_the_last_one(fitter, monkeypatch, caplog):
    fitter.want("a", ROWS)
    assert fitter.settle(60)
    model = fitter.latest("a")
    assert model is not None and model.trials == 6

    def broken(peaks, *, before):
        raise ValueError("singular")

    monkeypatch.setattr(learned, "learn", broken)
    fitter.want("a", ROWS)
    assert fitter.settle(20)
    assert fitter.latest("a") is model
    assert "could not be learned from" in caplog.text


def test_without_scikit_learn_nothing_is_learned(fitter, monkeypatch):
    monkeypatch.setattr(fitting, "available", lambda: False)
    fitter.want("a", ROWS)
    assert fitter.settle(1)
    assert fitter.latest("a") is None
