"""Which trial starts next: priorities among submissions, and what a submission allows on one device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.pools import facts_of

from vrampool.errors import InputError


def test_a_submission_with_a_higher_priority_gets_every_free_place(stepped):
    with stepped(workers=2, slots=2) as pool:
        started: list[str] = []

        def objective_of(name):
            def objective(trial):
                started.append(name)
                return trial.suggest_float("x", 0, 1)

            return objective

        low = pool.submit(objective_of("low"), 20, study_name="low")
        for _ in range(3):
            pool.turn()
        before = len(started)
        high = pool.submit(objective_of("high"), 6, study_name="high", priority=10)
        pool.drive(high, low)
        after = started[before:]
        assert after[:6] == ["high"] * 6, after
        assert after.count("low") == 20 - before


def test_equal_priorities_share_the_places(stepped):
    with stepped(workers=1, slots=4) as pool:
        started: list[str] = []

        def objective_of(name):
            def objective(trial):
                started.append(name)
                return trial.suggest_float("x", 0, 1)

            return objective

        handles = [pool.submit(objective_of(name), 10, study_name=name) for name in ("a", "b")]
        pool.drive(*handles)
        assert 3 <= started[:10].count("a") <= 7, started


def test_a_submission_says_how_many_of_its_trials_a_device_takes(stepped):
    with stepped(workers=3, slots=4) as pool:
        handle = pool.submit(lambda trial: trial.suggest_float("x", 0, 1), 30, max_trials_per_device=2)
        pool.drive(handle)
        assert pool.most_at_once <= 6


def test_no_device_runs_more_of_a_submission_than_it_allows(make_pool, tmp_path):
    """Room and places are there for four; another submission gets what this one leaves."""
    pool = make_pool(max_trials=4)
    marks = tmp_path / "marks"
    marks.mkdir()

    def objective(trial):
        import os
        import time

        place = Path(marks) / f"{trial.study.study_name}-{trial.number}"
        place.touch()
        seen = os.listdir(marks)
        trial.set_user_attr("seen", seen)
        end_s = time.monotonic() + (0.3 if trial.study.study_name == "bounded" else 20)
        while time.monotonic() < end_s and not (trial.study.study_name == "free" and (Path(marks) / "stop").exists()):
            time.sleep(0.01)
        place.unlink()
        return 0.0

    free = pool.submit(objective, 1, study_name="free")
    bounded = pool.submit(objective, 6, study_name="bounded", max_trials_per_device=1)
    bounded.wait(60)
    (marks / "stop").touch()
    free.wait(60)
    seen = [trial.user_attrs["seen"] for trial in bounded.trials]
    assert all(sum(name.startswith("bounded") for name in names) == 1 for names in seen), seen
    assert all(facts_of(trial).end == "complete" for trial in [*free.trials, *bounded.trials])


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"priority": 1.5}, "priority must be a whole number, higher ones first"),
        ({"priority": True}, "priority must be a whole number"),
        ({"max_trials_per_device": 0}, "max_trials_per_device must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(stepped, option, words):
    with stepped() as pool, pytest.raises(InputError, match=words):
        pool.submit(lambda trial: 0.0, 1, **option)


def test_priority_is_kept_in_what_is_submitted(stepped):
    with stepped() as pool:
        handle = pool.submit(lambda trial: 0.0, 1, priority=-3, max_trials_per_device=2)
        assert (handle.spec.priority, handle.spec.max_trials_per_device) == (-3, 2)
        assert json.loads(json.dumps(handle.spec.to_json()))["priority"] == -3
