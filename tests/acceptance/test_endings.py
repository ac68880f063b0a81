"""How a trial may go wrong without saying so: killed, hung, flooding, crashed. It costs only that trial."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState
from rq.job import Job
from support.pools import LivePool, check_invariants, facts_of, log_of, only
from support.waiting import until

from vrampool.messages import EndKind
from vrampool.storage import mark_of

OBJECTIVES = Path(__file__).with_name("objectives.py")
COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL


def seconds(trial) -> float:
    assert trial.datetime_start is not None and trial.datetime_complete is not None
    return (trial.datetime_complete - trial.datetime_start).total_seconds()


@pytest.mark.parametrize("name", ["big_attribute", "big_print"])
def test_five_megabytes_out_of_a_child_block_nobody(pool: LivePool, name):
    """A17."""
    trial = only(pool.run(f"{OBJECTIVES}:{name}"))
    assert (trial.state, trial.value) == (COMPLETE, 1.0)
    assert seconds(trial) < 30
    if name == "big_attribute":
        assert trial.user_attrs["blob"] == "x" * 5_000_000
    else:
        assert len(log_of(trial)) <= pool.pool.settings.log_bytes + 1000
        assert b"left out" in log_of(trial)
    check_invariants(pool)


def test_an_error_of_five_megabytes_is_cut_and_says_so(pool: LivePool):
    """A17."""
    trial = only(pool.run(f"{OBJECTIVES}:big_error"))
    assert trial.state == FAIL and seconds(trial) < 30
    text = facts_of(trial).text
    assert text.startswith("RuntimeError: yyy") and "left out" in text and len(text) < 10_000
    check_invariants(pool)


def test_output_that_is_no_text_is_kept(pool: LivePool):
    """A46: both streams, and more than a pipe holds after the first bad byte."""
    trial = only(pool.run(f"{OBJECTIVES}:print_no_text"))
    assert trial.state == COMPLETE and seconds(trial) < 10
    log = log_of(trial)
    assert b" bad\n" in log
    assert log.count(b"\xff") > 100_000 or log.decode().count("\N{REPLACEMENT CHARACTER}") > 100_000
    check_invariants(pool)


def test_the_last_words_of_a_killed_trial_are_in_the_log_of_that_attempt(pool: LivePool):
    """A47: one log for each attempt, named in the trial; signal in the error."""
    handle = pool.run(f"{OBJECTIVES}:last_words", max_infra_retries=2)
    assert [trial.state for trial in handle.trials] == [FAIL] * 3
    facts = [facts_of(trial) for trial in handle.trials]
    for trial, item in zip(handle.trials, facts, strict=True):
        assert f"last words {trial.number}\n".encode() in log_of(trial)
        assert item.signal == 9
        assert "killed by signal 9 (SIGKILL)" in item.text
    assert len({item.log for item in facts}) == 3
    ((reason, count),) = handle.failures().items()
    assert count == 1 and "signal 9" in reason
    check_invariants(pool)


def test_a_killed_trial_is_tried_again_with_the_same_parameters_and_its_lineage(pool: LivePool, tmp_path):
    """Killed twice, complete in its third attempt: one root trial, three attempts."""
    handle = pool.run(f"{OBJECTIVES}:die_twice", env={"TRIES": str(tmp_path / "tries")})
    first, second, third = handle.trials
    assert [trial.state for trial in handle.trials] == [FAIL, FAIL, COMPLETE]
    assert first.params == second.params == third.params != {}
    assert third.value == third.params["x"]
    marks = [mark_of(trial) for trial in handle.trials]
    assert [(mark.attempt, mark.root, mark.retry_of) for mark in marks if mark is not None] == [
        (1, None, None),
        (2, first.number, first.number),
        (3, first.number, second.number),
    ]
    assert third.system_attrs["failed_trial"] == first.number
    assert third.system_attrs["retry_history"] == [first.number, second.number]
    assert third.user_attrs["note"] == "n"
    assert first.intermediate_values == {0: 0.5} and third.intermediate_values == {}
    progress = handle.progress()
    assert (progress.finished, progress.attempts, progress.counts) == (1, 3, {"COMPLETE": 1})
    check_invariants(pool)


def test_a_crash_in_foreign_code_is_told_by_its_signal(pool: LivePool):
    """No retry here, as none is allowed."""
    trial = only(pool.run(f"{OBJECTIVES}:segfault", max_infra_retries=0))
    facts = facts_of(trial)
    assert (facts.end, facts.signal) == (EndKind.CRASHED, 11)
    assert "SIGSEGV" in facts.text
    check_invariants(pool)


@pytest.mark.parametrize("name", ["hang_swallowing_all", "hang_deaf"])
def test_a_trial_that_hangs_is_ended_at_its_timeout_whatever_it_swallows(pool: LivePool, name):
    """A35: asked first, then killed; told once and not tried again."""
    trial = only(pool.run(f"{OBJECTIVES}:{name}", trial_timeout_s=1.0))
    facts = facts_of(trial)
    assert (trial.state, facts.end) == (FAIL, EndKind.TIMEOUT)
    assert facts.text == "timeout 1 s"
    assert facts.run_s is not None and 1.0 <= facts.run_s < 1.0 + pool.pool.settings.stop_ask_s + 3
    assert facts.pid is not None and not psutil.pid_exists(facts.pid)
    check_invariants(pool)


def test_a_timed_out_trial_is_tried_again_if_the_submission_says_so(pool: LivePool):
    handle = pool.run(
        f"{OBJECTIVES}:hang_swallowing_all", trial_timeout_s=0.5, retry_timeouts=True, max_infra_retries=1
    )
    assert [facts_of(trial).end for trial in handle.trials] == [EndKind.TIMEOUT] * 2
    check_invariants(pool)


def test_without_a_timeout_nothing_of_rq_ends_a_trial(pool: LivePool, tmp_path):
    """A35: RQ's own default would be 180 seconds; see the slow test too."""
    handle = pool.submit(f"{OBJECTIVES}:wait_for_file", env={"GATE": str(tmp_path / "gate")})
    until(lambda: handle.progress().running, what="a running trial")
    job = Job.fetch(f"{handle.id}-0", connection=pool.pool.connection)
    assert job.timeout in (-1, None)
    assert job.ttl in (-1, None)
    (tmp_path / "gate").touch()
    assert only(handle.wait(30)).state == COMPLETE
    check_invariants(pool)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_trial_may_take_longer_than_rq_allows_its_jobs(pool: LivePool):
    """A35."""

    def objective(trial):
        import time

        time.sleep(200)
        return 1.0

    assert only(pool.run(objective, limit_s=280)).state == COMPLETE
    check_invariants(pool)


def test_what_is_cancelled_ends_at_once_and_is_not_counted(pool: LivePool):
    """Running ones are stopped, waiting ones leave; none is tried again."""

    def objective(trial):
        import time

        while True:
            time.sleep(0.05)

    handle = pool.submit(objective, 10)
    until(lambda: handle.progress().running >= 2, what="running trials")
    handle.cancel()
    handle.wait(30)
    assert str(handle.state) == "cancelled"
    assert {trial.state for trial in handle.trials} == {FAIL}
    assert handle.progress().finished == 0
    check_invariants(pool)


def test_what_is_stopped_lets_running_trials_finish(pool: LivePool, tmp_path):
    handle = pool.submit(f"{OBJECTIVES}:wait_for_file", 20, env={"GATE": str(tmp_path / "gate")})
    until(lambda: handle.progress().running >= 2, what="running trials")
    handle.stop()
    (tmp_path / "gate").touch()
    handle.wait(30)
    assert str(handle.state) == "stopped"
    complete = [trial for trial in handle.trials if trial.state == COMPLETE]
    assert 2 <= len(complete) < 20
    assert handle.progress().counts == {"COMPLETE": len(complete)}
    check_invariants(pool)
