"""`vrampool logs`: what a trial printed, while it runs, when it was killed, and from another host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import optuna
import pytest
from support.commands import call
from support.pools import LivePool, only
from support.waiting import until

from vrampool.cli import logs
from vrampool.errors import VrampoolError
from vrampool.queueing import Outputs
from vrampool.trial_output import TrialOutput
from vrampool_worker.children.log import ChildLog


def prints(words, path=None):
    """Return an objective that prints, then waits for a file if one is named."""

    def objective(trial):
        import sys
        import time
        from pathlib import Path

        print(words, flush=True)
        print("a warning", file=sys.stderr, flush=True)
        while path is not None and not Path(path).exists():
            time.sleep(0.01)
        print("the end", flush=True)
        return 1.0

    return objective


def kills_itself(trial):
    import os
    import signal

    print("the last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def shown(capsys, pool, *arguments):
    """Call `logs` within this process."""
    return call(capsys, "logs", *arguments, "--state-dir", pool.state_dir)


def follow(pool, *arguments):
    """Start `logs -f` as a program whose output can be read while it runs."""
    words = [sys.executable, "-m", "vrampool", "logs", *arguments, "-f", "--state-dir", str(pool.state_dir)]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)


def test_a_trial_s_output_is_printed_as_it_was_and_its_end_on_request(pool: LivePool, capsys):
    handle = pool.run(prints("hello from a trial"))
    done = shown(capsys, pool, handle.study_name, "0")
    assert (done.code, done.out) == (0, "hello from a trial\na warning\nthe end\n"), done.err
    assert shown(capsys, pool, f"{handle.study_name}/0", "-n", "1").out == "the end\n"
    done = shown(capsys, pool, handle.study_name)
    assert done.out.startswith("hello") and done.err == "trial 0, complete:\n", "the newest one; it says which"


def test_a_running_trial_is_followed_until_its_end(pool: LivePool, tmp_path):
    handle = pool.submit(prints("early", tmp_path / "go"))
    until(lambda: [trial.state.name for trial in handle.trials] == ["RUNNING"], what="a running trial")
    process = follow(pool, handle.study_name, "0")
    assert process.stdout.readline() == b"early\n", "before the trial has ended"
    assert not (tmp_path / "go").exists()
    (tmp_path / "go").touch()
    rest, errors = process.communicate(timeout=30)
    assert rest == b"a warning\nthe end\n", errors
    assert process.returncode == 0


def test_a_waiting_trial_is_waited_for(monkeypatch, capsys):
    study = optuna.create_study()
    study.enqueue_trial({})
    handle = SimpleNamespace(study=study, study_name="digits")
    monkeypatch.setattr("vrampool.cli.logs.time.sleep", lambda _pause_s: study.ask())
    started = logs._await_start(handle, logs._choose(handle, 0))
    assert started.state.name == "RUNNING"
    assert capsys.readouterr().err == "trial 0 waits; `vrampool why` says for what\n"


def test_the_output_of_a_killed_trial_is_kept(pool: LivePool, capsys):
    handle = pool.run(kills_itself, max_infra_retries=0)
    assert "SIGKILL" in str(only(handle).user_attrs["vrampool:attempt"]["text"])
    assert shown(capsys, pool, handle.study_name, "0").out == "the last words\n"


def test_another_host_gets_it_through_the_worker(pool: LivePool, monkeypatch, tmp_path):
    """Nothing of the worker's disk is seen there: neither the file nor the state directory."""
    handle = pool.run(prints("far away"))
    monkeypatch.setattr("vrampool.trial_output.socket.gethostname", lambda: "elsewhere")
    output = TrialOutput(pool.pool.settings, pool.pool.connection)
    assert b"".join(output.read(handle.study_name, only(handle))) == b"far away\na warning\nthe end\n"
    assert not list(pool.pool.connection.scan_iter("vrampool:*:output:*")), "no copy stays in Redis"
    facts = only(handle).user_attrs["vrampool:attempt"]
    os.unlink(facts["log"])
    with pytest.raises(VrampoolError, match="is not kept any more where it was; it lies in"):
        list(output.read(handle.study_name, only(handle)))


def test_who_does_not_hold_the_secret_gets_nothing(pool: LivePool, monkeypatch):
    handle = pool.run(prints("far away"))
    monkeypatch.setattr("vrampool.trial_output.socket.gethostname", lambda: "elsewhere")
    monkeypatch.setattr("vrampool.trial_output.ANSWER_S", 1.5)
    forged = pool.pool.settings.with_changes(secret="another secret, 32 bytes of it...")
    with pytest.raises(VrampoolError, match=r"does not answer; it lies in .*0\.log on "):
        list(TrialOutput(forged, pool.pool.connection).read(handle.study_name, only(handle)))


def test_a_trial_that_prints_without_end_leaves_head_and_tail(pool: LivePool, capsys):
    def objective(trial):
        for number in range(40_000):
            print(f"line {number:09}")
        return 1.0

    handle = pool.run(objective)
    done = shown(capsys, pool, handle.study_name, "0")
    assert done.out.startswith("line 000000000\n") and done.out.endswith("line 000039999\n")
    assert "bytes of output left out here ..." in done.out
    assert len(done.out) < 256 * 1024 + 100


def test_wrong_trials_are_wrong_input(pool: LivePool, capsys):
    handle = pool.run(prints("x"))
    done = shown(capsys, pool, handle.study_name, "7")
    assert (done.code, done.err) == (2, f"error: study {handle.study_name} has no trial 7\n")
    done = shown(capsys, pool, "nothing", "0")
    assert done.code == 2 and "this pool has no study 'nothing'" in done.err


def test_interrupting_a_follower_leaves_the_trial_running(pool: LivePool, tmp_path):
    handle = pool.submit(prints("early", tmp_path / "go"))
    until(lambda: [trial.state.name for trial in handle.trials] == ["RUNNING"], what="a running trial")
    process = follow(pool, handle.study_name, "0")
    assert process.stdout.readline() == b"early\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert [trial.state.name for trial in handle.trials] == ["RUNNING"]
    (tmp_path / "go").touch()
    assert handle.wait(40).trials[0].state.name == "COMPLETE"


def test_a_reader_sees_by_the_positions_what_was_left_out():
    log = ChildLog(400)
    log.add(b"a" * 100)
    assert log.since(0) == [(0, b"a" * 100)]
    log.add(b"b" * 50)
    assert log.since(100) == [(100, b"b" * 50)]
    log.add(b"c" * 400)
    assert log.since(0) == [(0, b"a" * 100), (250, b"c" * 300)]
    assert log.since(540) == [(540, b"c" * 10)]
    assert log.since(550) == []


def test_a_stream_forgets_its_oldest_pieces_and_ends_by_itself(connection, pool_name):
    from vrampool.queueing.outputs import KEPT_S, PIECE_BYTES, PIECES_KEPT, cut

    outputs = Outputs(connection, pool_name)
    pieces = cut("w", 0, bytes(PIECE_BYTES * (PIECES_KEPT + 2)), "ended")
    outputs.show("reader", pieces)
    found, last = outputs.read("reader", "0", wait_s=0.01)
    assert (len(found), found[0].position, found[-1].state) == (PIECES_KEPT, 2 * PIECE_BYTES, "ended")
    assert outputs.read("reader", last, wait_s=0.01) == ([], last)
    (key,) = connection.scan_iter("*output:reader")
    assert 0 < connection.ttl(key) <= KEPT_S
