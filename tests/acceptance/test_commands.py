"""The command line: what it prints, for people and for scripts, and its exit codes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support import commands
from support.commands import call
from support.pools import LivePool, check_invariants, facts_of, only, processes_of
from support.waiting import until

from vrampool.settings import load_settings

OBJECTIVES = Path(__file__).with_name("objectives.py")
TRIAL_KEYS = {
    "number",
    "state",
    "value",
    "params",
    "request_bytes",
    "lease_bytes",
    "peak_bytes",
    "attempt",
    "device",
    "pid",
    "start",
    "end",
}


def test_run_starts_all_it_needs_and_its_last_line_tells_a_script_everything(tmp_path):
    """On a machine where nothing runs; and it leaves no process behind."""
    state = tmp_path / "state"
    done = commands.run(
        *("run", f"{OBJECTIVES}:draw", "--trials", "3", "--direction", "maximize", "--study", "lone", "--json"),
        *("--gpu", "cpu", "--budget", "1GiB", "--preload", "", "--vram", "200MiB", "--state-dir", state),
        env={"VRAMPOOL_SHARE": "1"},
    )
    assert done.code == 0, done
    found = done.json
    assert found["study"] == "lone"
    assert found["counts"] == {"COMPLETE": 3}
    assert found["wall_s"] > 0
    trials = found["trials"]
    assert [trial["number"] for trial in trials] == [0, 1, 2]
    best = max(trials, key=lambda trial: trial["value"])
    assert found["best_value"] == best["value"] and found["best_params"] == best["params"]
    for trial in trials:
        assert trial.keys() >= TRIAL_KEYS
        assert trial["value"] == trial["params"]["x"]
        assert trial["request_bytes"] == trial["lease_bytes"] == 200 * 1024**2
        assert 0 < trial["peak_bytes"] < 200 * 1024**2
        assert (trial["state"], trial["attempt"], trial["device"]) == ("COMPLETE", 1, "cpu")
        assert trial["end"] > trial["start"] > 1_700_000_000
    assert len({trial["pid"] for trial in trials}) == 3
    assert processes_of(state) == []


def test_run_attaches_to_a_pool_that_runs_and_leaves_it_running(pool: LivePool):
    done = commands.run("run", f"{OBJECTIVES}:draw", "--trials", "2", "--vram", "200MiB", "--state-dir", pool.state_dir)
    assert done.code == 0, done
    assert "2 complete" in done.out and "best value" in done.out
    assert done.err == "", "there is no terminal that could show progress"
    check_invariants(pool)


def test_a_run_without_one_complete_trial_ends_with_code_1_and_says_why(pool: LivePool):
    arguments = ("run", f"{OBJECTIVES}:raise_value_error", "--vram", "200MiB", "--state-dir", pool.state_dir)
    done = commands.run(*arguments, "--trials", "2")
    assert done.code == 1
    assert "error: no trial completed" in done.err
    assert "2 of 2 failed: ValueError: the same for all" in done.out
    check_invariants(pool)


def test_values_that_json_does_not_know_are_told_as_text(pool: LivePool):
    """A script's parser need not be Python's."""
    done = commands.run(
        *("run", f"{OBJECTIVES}:return_exact_values", "--trials", "3", "--max-concurrent", "1", "--json"),
        *("--vram", "200MiB", "--state-dir", pool.state_dir),
    )
    assert done.code == 0, done
    assert [trial["value"] for trial in done.json["trials"]] == [0.1 + 0.2, 5e-324, "-inf"]
    assert done.json["best_value"] == "-inf"


def test_options_that_a_pool_which_runs_already_does_not_take_are_named(pool: LivePool):
    """They were passed over without a word, and the trials ran with another budget."""
    done = commands.run(
        *("run", f"{OBJECTIVES}:one", "--trials", "1", "--study", "as-it-is", "--vram", "200MiB"),
        *("--budget", "300MiB", "--start-method", "forkserver", "--state-dir", pool.state_dir),
    )
    assert done.code == 0, done
    assert "keeps its own settings, so --budget, --start-method changes nothing" in done.err
    assert "vrampool down" in done.err
    plain = commands.run("run", f"{OBJECTIVES}:one", "--trials", "1", "--vram", "200MiB", "--state-dir", pool.state_dir)
    assert plain.code == 0 and "warning" not in plain.err, plain


@pytest.mark.parametrize("command", ["submit", "up", "probe"])
def test_other_commands_name_them_in_the_same_words(pool: LivePool, capsys, command):
    words = {
        "submit": ("submit", f"{OBJECTIVES}:one", "--trials", "1", "--vram", "200MiB"),
        "up": ("up",),
        "probe": ("probe", f"{OBJECTIVES}:one", "--runs", "1"),
    }[command]
    done = call(capsys, *words, "--max-trials", "2", "--preload", "torch", "--state-dir", pool.state_dir)
    assert done.err.startswith(
        "warning: a pool runs already and keeps its own settings, so --max-trials, --preload changes nothing; "
        "end it with `vrampool down` to start another one\n"
    ), done


def test_a_pool_that_a_command_starts_takes_its_options_and_nothing_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("VRAMPOOL_SHARE", "1")
    where = ("--state-dir", tmp_path / "state")
    up = call(capsys, "up", "--gpu", "cpu", "--budget", "1GiB", "--preload", "", *where)
    try:
        assert up.code == 0 and up.err == "", up
    finally:
        assert call(capsys, "down", *where).code == 0


def test_a_trial_is_named_as_messages_name_it_and_one_that_never_was_best_says_why(pool: LivePool, capsys):
    handle = pool.run(f"{OBJECTIVES}:raise_value_error", 2, study_name="all-bad")
    two, one = (
        call(capsys, "why", *named, "--state-dir", pool.state_dir) for named in (("all-bad", "1"), ("all-bad/1",))
    )
    assert one.code == 0 and one.out == two.out and "trial 1 is FAIL" in one.out
    for name in ("best_trial", "best_value", "best_params"):
        with pytest.raises(ValueError, match=r"no trial of all-bad is complete: 2 FAIL; `vrampool why all-bad` says"):
            getattr(handle, name)


def test_ctrl_c_ends_a_run_with_code_130_and_stops_the_study(pool: LivePool, tmp_path):
    """What runs may finish; the pool that was there before goes on."""
    gate = tmp_path / "gate"
    running = commands.start(
        *("run", f"{OBJECTIVES}:wait_for_file", "--trials", "20", "--study", "interrupted", "--env", f"GATE={gate}"),
        *("--vram", "200MiB", "--state-dir", pool.state_dir),
    )
    until(lambda: "interrupted" in {row.study_name for row in pool.pool.handles()}, what="the submission")
    handle = pool.pool.attach("interrupted")
    until(lambda: handle.progress().running, what="a running trial")
    running.send_signal(signal.SIGINT)
    done = commands.finish(running)
    assert done.code == 130, done
    assert "Traceback" not in done.err
    assert "under way may finish; `vrampool stop interrupted --now` ends" in done.err
    assert "the same command with --study interrupted goes on" in done.err
    gate.touch()
    handle.wait(30)
    assert str(handle.state) == "stopped"
    assert {trial.state for trial in handle.trials} <= {TrialState.COMPLETE, TrialState.FAIL}
    check_invariants(pool)


def test_ctrl_c_waits_for_what_runs_in_a_pool_of_its_own_and_a_second_one_ends_it(tmp_path, own_settings):
    running = commands.start(
        *("run", f"{OBJECTIVES}:wait_for_file", "--trials", "20", "--study", "mine", "--env", f"GATE={tmp_path}/no"),
        *(
            "--vram",
            "200MiB",
            "--max-concurrent",
            "1",
            "--gpu",
            "cpu",
            "--share",
            "--budget",
            "500MiB",
            "--preload",
            "",
            "--json",
        ),
        *("--state-dir", tmp_path / "state"),
    )
    logs = tmp_path / "state" / "logs" / "trials"
    until(lambda: list(logs.rglob("*.log")), what="a running trial", timeout_s=40)
    running.send_signal(signal.SIGINT)
    assert running.stderr is not None
    told = [running.stderr.readline(), running.stderr.readline()]
    assert "waiting for 1 trial under way; Ctrl-C again ends them now" in "".join(told)
    running.send_signal(signal.SIGINT)
    done = commands.finish(running)
    assert done.code == 130, done
    assert done.json["state"] == "cancelled" and done.json["counts"] == {}, "what is cancelled is not counted"
    assert "ending what runs" in done.err and "Traceback" not in done.err
    assert processes_of(tmp_path / "state") == []


def test_submit_status_why_and_stop_tell_of_a_study_on_its_way(pool: LivePool, tmp_path, capsys):
    gate = tmp_path / "gate"
    at = ("--state-dir", pool.state_dir)
    asked = ("submit", f"{OBJECTIVES}:wait_for_file", "--trials", "30", "--study", "on-its-way", "--vram", "300MiB")
    done = call(capsys, *asked, "--env", f"GATE={gate}", "--json", *at)
    assert (done.code, done.json["study"]) == (0, "on-its-way")
    handle = pool.pool.attach("on-its-way")
    until(lambda: handle.progress().running == 3, what="three running trials")

    everything = call(capsys, "status", "--json", *at).json
    (device,) = everything["devices"]
    assert device["device_id"] == "cpu" and device["budget_bytes"] == 1024**3
    assert "on-its-way" in [study["study"] for study in everything["studies"]]
    assert len(everything["waiting"]) <= 1, "a stale proposal is a worse one"
    shown = call(capsys, "status", "on-its-way", *at)
    assert shown.code == 0
    assert "0/30 finished, 3 running" in shown.out and "300 MiB leased" in shown.out

    why = call(capsys, "why", "on-its-way", *at)
    assert why.code == 0
    assert "3 running" in why.out and "each trial asks for 300 MiB" in why.out and "124 MiB free" in why.out
    running = call(capsys, "why", "on-its-way", "0", *at)
    assert "trial 0 is RUNNING" in running.out

    stopped = call(capsys, "stop", "on-its-way", *at)
    assert stopped.code == 0 and "stop" in stopped.out
    gate.touch()
    handle.wait(30)
    assert "stopped" in call(capsys, "status", "on-its-way", *at).out
    ended = call(capsys, "why", "on-its-way", "0", *at)
    assert "trial 0 is COMPLETE" in ended.out and "its output:" in ended.out and "lease 300 MiB" in ended.out
    check_invariants(pool)


def test_stop_now_ends_what_runs(pool: LivePool, tmp_path, capsys):
    handle = pool.submit(f"{OBJECTIVES}:wait_for_file", 3, study_name="stop-now", env={"GATE": str(tmp_path / "gate")})
    until(lambda: handle.progress().running, what="a running trial")
    done = call(capsys, "stop", "stop-now", "--now", "--json", "--state-dir", pool.state_dir)
    assert done.code == 0 and done.json["study"] == "stop-now"
    handle.wait(30)
    assert {trial.state for trial in handle.trials} == {TrialState.FAIL}
    check_invariants(pool)


def test_a_pool_that_was_brought_up_survives_its_starter_and_a_down_loses_nothing(tmp_path, capsys):
    """`up`, `submit`, `down` in the middle, `up` again: the study is complete."""
    gate, state = tmp_path / "gate", tmp_path / "state"
    at = ("--state-dir", state)
    env = {"VRAMPOOL_SHARE": "1", "VRAMPOOL_GRACE_S": "0.2", "VRAMPOOL_STOP_ASK_S": "0.5"}
    bring_up = ("up", "--gpu", "cpu", "--budget", "1GiB", "--preload", "", *at)
    try:
        both = [commands.start(*bring_up, env=env) for _ in range(2)]
        for done in map(commands.finish, both):  # at the same moment: one starts it, the other finds it
            assert done.code == 0, done
            assert "the pool runs" in done.out or "a pool runs already" in done.out
        again = call(capsys, *bring_up)
        assert again.code == 0 and "a pool runs already" in again.out
        asked = ("submit", f"{OBJECTIVES}:wait_for_file", "--trials", "2", "--study", "survives", "--vram", "200MiB")
        assert call(capsys, *asked, "--env", f"GATE={gate}", *at).code == 0

        def running() -> bool:
            told = call(capsys, "status", "survives", "--json", *at).json
            return any(trial["state"] == "RUNNING" for trial in told["studies"][0]["trials"])

        until(running, what="a running trial")
        ended = call(capsys, "down", *at)
        assert ended.code == 0 and "the pool has ended" in ended.out, ended
        assert processes_of(state) == []
        nothing = call(capsys, "down", *at)
        assert nothing.code == 0 and "no pool runs" in nothing.out

        assert commands.run(*bring_up, env=env).code == 0
        gate.touch()

        def ended_study() -> dict | None:
            (study,) = call(capsys, "status", "survives", "--json", *at).json["studies"]
            return study if study["state"] == "done" else None

        study = until(ended_study, what="the end of the study")
        assert study["counts"] == {"COMPLETE": 2}
        handed_back = [trial for trial in study["trials"] if trial["state"] == "FAIL"]
        assert handed_back and all(trial["how"] == "preempted" for trial in handed_back)
    finally:
        call(capsys, "down", *at)
    assert processes_of(state) == []


def test_doctor_says_what_works_and_what_does_not(tmp_path, capsys, monkeypatch):
    """Exit code 0 where all is well, 1 where something fails, with what to do."""
    well = call(capsys, "doctor", "--state-dir", tmp_path, "--gpu", "cpu", "--json")
    assert well.code == 0, well
    names = {check["name"]: check["verdict"] for check in well.json["checks"]}
    assert names["redis"] == names["storage"] == names["system"] == "ok"
    text = call(capsys, "doctor", "--state-dir", tmp_path, "--gpu", "cpu")
    assert "ok    redis: the embedded Valkey starts and answers" in text.out
    ill = call(capsys, "doctor", "--state-dir", tmp_path, "--redis", "redis://:hush@127.0.0.1:1/0")
    assert ill.code == 1
    assert "FAIL  redis" in ill.out and "127.0.0.1:1" in ill.out and "hush" not in ill.out


def test_help_names_every_command(capsys):
    done = call(capsys, "--help")
    assert done.code == 0
    for name in ("run", "submit", "worker", "coordinator", "status", "stop", "why", "up", "down", "doctor"):
        assert f"  {name} " in done.out
    for name in ("run", "worker", "coordinator"):
        assert call(capsys, name, "--help").code == 0


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_settings_come_from_flag_environment_and_file(source, tmp_path, capsys, monkeypatch):
    """In that order; `doctor` needs no pool to show which one counts."""
    monkeypatch.chdir(tmp_path)
    Path("vrampool.toml").write_text('[vrampool]\nstate_dir = "/proc/from-the-file"\n')
    arguments = []
    expected = "/proc/from-the-file"
    if source in ("flag", "environment"):
        monkeypatch.setenv("VRAMPOOL_STATE_DIR", "/proc/from-the-environment")
        expected = "/proc/from-the-environment"
    if source == "flag":
        arguments = ["--state-dir", "/proc/from-the-flag"]
        expected = "/proc/from-the-flag"
    assert expected in call(capsys, "doctor", *arguments).out


def test_the_fraction_of_a_gpu_that_kubernetes_charts_set_counts_as_budget():
    """`GPU_MEM_FRACTION`, unless a budget is given."""
    assert load_settings(env={"GPU_MEM_FRACTION": "0.5"}).budget == "50.0%"
    assert load_settings(env={"GPU_MEM_FRACTION": "0.5", "VRAMPOOL_BUDGET": "2GiB"}).budget == "2GiB"


def test_a_worker_takes_its_settings_from_all_three_places(make_pool, tmp_path, monkeypatch):
    """What the worker tells of itself: budget from the file, slots from the environment, the device from a flag."""
    monkeypatch.chdir(tmp_path)
    Path("vrampool.toml").write_text('budget = "512MiB"\nmax_trials = 7\n')
    monkeypatch.setenv("VRAMPOOL_MAX_TRIALS", "3")
    made = make_pool(budget=None, max_trials=None, gpu="cpu")
    device = made.device()
    assert (device.device_id, device.budget_bytes, device.slots) == ("cpu", 512 * 1024**2, 3)
    assert facts_of(only(made.run(f"{OBJECTIVES}:one"))).device == "cpu"
