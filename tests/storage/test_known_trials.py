"""Unfinished trials that are not read again: nothing that matters is missed."""

from __future__ import annotations

import pytest
from optuna.distributions import FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState

from vrampool.storage import REQUEST, KnownTrials, Mark, claim, claimed_by, create_planned, open_storage, record_plan

SPACE = FloatDistribution(0.0, 1.0)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def sides(tmp_path):
    """A reader that knows trials, its clock, and a writer: two processes' views of one database."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    writer, reader, clock = open_storage(url, create_schema=True), open_storage(url, create_schema=False), Clock()
    reader.database.known_trials = KnownTrials(clock, max_age_s=2.0)
    study_id = writer.create_new_study(["minimize"], "digits")
    yield reader, writer, clock, study_id
    reader.close()
    writer.close()


def running(writer, study_id: int, *, x: float | None = 0.5) -> int:
    trial_id = create_planned(writer, study_id, Mark(submission="sub1"), request={"bytes": 1})
    assert claim(writer, trial_id, "w0")
    if x is not None:
        writer.remember(study_id, writer.get_trial(trial_id))
        writer.set_trial_param(trial_id, "x", x, SPACE)
    return trial_id


def read(reader, study_id: int):
    return reader.get_all_trials(study_id, deepcopy=False)


def test_a_trial_that_runs_is_the_same_object_until_it_is_old(sides):
    reader, writer, clock, study_id = sides
    trial_id = running(writer, study_id)
    first = read(reader, study_id)[0]
    writer.set_trial_user_attr(trial_id, "note", "new")
    assert read(reader, study_id)[0] is first
    clock.now_s += 2.5
    assert read(reader, study_id)[0].user_attrs["note"] == "new"


def test_its_end_and_its_values_are_seen_at_once(sides):
    reader, writer, _, study_id = sides
    trial_id = running(writer, study_id)
    assert read(reader, study_id)[0].state == TrialState.RUNNING
    assert writer.move_trial(trial_id, TrialState.RUNNING, TrialState.COMPLETE, values=[3.0], user_attrs={"a": 1})
    ended = read(reader, study_id)[0]
    assert (ended.state, ended.values, ended.user_attrs["a"]) == (TrialState.COMPLETE, [3.0], 1)


def test_its_start_is_seen_at_once_with_its_claim(sides):
    reader, writer, _, study_id = sides
    trial_id = create_planned(writer, study_id, Mark(submission="sub1"), request={"bytes": 1})
    assert read(reader, study_id)[0].state == TrialState.WAITING
    assert claim(writer, trial_id, "w7")
    started = read(reader, study_id)[0]
    assert started.state == TrialState.RUNNING
    assert any("w7" in key for key in started.user_attrs)


def test_who_runs_it_is_seen_at_once_when_it_was_handed_back_and_claimed_by_another(sides):
    reader, writer, _, study_id = sides
    trial_id = running(writer, study_id)
    assert "vrampool:claim:w0" in read(reader, study_id)[0].user_attrs
    assert writer.move_trial(trial_id, TrialState.RUNNING, TrialState.WAITING, user_attrs={"vrampool:claim:w0": None})
    assert claim(writer, trial_id, "w1")
    assert "vrampool:claim:w1" in read(reader, study_id)[0].user_attrs


def test_a_trial_without_parameters_is_read_anew_until_it_has_some(sides):
    reader, writer, _, study_id = sides
    trial_id = running(writer, study_id, x=None)
    assert read(reader, study_id)[0].params == {}
    writer.remember(study_id, writer.get_trial(trial_id))
    writer.set_trial_param(trial_id, "x", 0.25, SPACE)
    assert read(reader, study_id)[0].params == {"x": 0.25}


def test_a_waiting_trial_is_read_anew_until_it_has_its_request(sides):
    reader, writer, _, study_id = sides
    trial_id = create_planned(writer, study_id, Mark(submission="sub1"))
    assert REQUEST not in read(reader, study_id)[0].user_attrs
    record_plan(writer, trial_id, None, {"bytes": 7})
    assert read(reader, study_id)[0].user_attrs[REQUEST] == {"bytes": 7}


def test_what_runs_as_before_is_not_even_handed_over_again(sides):
    """With 1 000 devices going through all that run took most of a look."""
    reader, writer, _, study_id = sides
    ids = [running(writer, study_id) for _ in range(5)]
    for trial_id in ids:
        assert claimed_by(writer.get_trial(trial_id)) == "w0"
    first = read(reader, study_id)
    changed: list[list[int]] = []
    get = reader.database._get_trials

    def noted(*args, **kwargs):
        found = get(*args, **kwargs)
        changed.append([trial._trial_id for trial in found])
        return found

    reader.database._get_trials = noted
    assert [one is other for one, other in zip(read(reader, study_id), first, strict=True)] == [True] * 5
    assert writer.move_trial(ids[3], TrialState.RUNNING, TrialState.FAIL)
    ids.append(running(writer, study_id))
    assert [trial.state.name for trial in read(reader, study_id)] == ["RUNNING"] * 3 + ["FAIL"] + ["RUNNING"] * 2
    assert changed == [[], [ids[3], ids[5]]]


def test_one_that_ends_after_younger_ones_is_seen_to_have_ended(sides):
    reader, writer, _, study_id = sides
    first, second = running(writer, study_id), running(writer, study_id)
    read(reader, study_id)
    for trial_id, states in ((second, ["RUNNING", "COMPLETE"]), (first, ["COMPLETE", "COMPLETE"])):
        assert writer.move_trial(trial_id, TrialState.RUNNING, TrialState.COMPLETE, values=[1.0])
        assert [trial.state.name for trial in read(reader, study_id)] == states


def test_where_many_run_what_they_add_is_seen_later(sides):
    reader, writer, clock, study_id = sides
    ids = [running(writer, study_id) for _ in range(300)]
    read(reader, study_id)
    writer.set_trial_user_attr(ids[0], "note", "new")
    clock.now_s += 2.5
    assert "note" not in read(reader, study_id)[0].user_attrs
    clock.now_s += 1.0
    assert read(reader, study_id)[0].user_attrs["note"] == "new"


def test_who_reads_all_at_once_gets_all(sides):
    reader, writer, _, study_id = sides
    running(writer, study_id)
    read(reader, study_id)
    assert [trial.number for trial in reader.database.get_all_trials(study_id)] == [0]
    assert [trial.number for trial in reader.get_all_trials(study_id, states=(TrialState.RUNNING,))] == [0]


def test_trials_come_in_the_order_of_their_numbers(sides):
    reader, writer, _, study_id = sides
    ids = [running(writer, study_id) for _ in range(4)]
    read(reader, study_id)
    assert writer.move_trial(ids[1], TrialState.RUNNING, TrialState.COMPLETE, values=[1.0])
    running(writer, study_id, x=None)
    assert [trial.number for trial in read(reader, study_id)] == [0, 1, 2, 3, 4]


def test_a_study_that_was_deleted_is_missed(sides):
    reader, writer, _, _ = sides
    study_id = writer.create_new_study([StudyDirection.MINIMIZE], "other")
    running(writer, study_id)
    assert len(read(reader, study_id)) == 1
    writer.delete_study(study_id)
    with pytest.raises(KeyError):
        read(reader, study_id)
