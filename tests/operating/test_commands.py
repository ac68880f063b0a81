"""`vrampool pause`, `resume` and `drain`: signed, repeated until they were obeyed, and honest about what runs."""

from __future__ import annotations

from optuna.trial import TrialState
from support.pools import LivePool, PoolMaker, check_invariants
from support.waiting import until

from vrampool.queueing import Events
from vrampool.signing import Signer


def wait_for(path):
    """Return an objective that runs until a file is there."""

    def objective(trial):
        import time
        from pathlib import Path

        while not Path(path).exists():
            time.sleep(0.01)
        return 1.0

    return objective


def test_a_paused_worker_takes_nothing_new_until_it_is_resumed(pool: LivePool, command, tmp_path):
    running = pool.submit(wait_for(tmp_path / "go"))
    until(lambda: pool.device().running, what="a running trial")
    done = command(pool, "pause")
    name = pool.device().name
    assert (done.returncode, done.stdout) == (0, f"{name}: pause\n")
    until(lambda: pool.device().state == "paused", what="a paused worker")
    assert "is paused: `vrampool pause` by" in pool.device().reason
    waiting = pool.submit(lambda trial: 2.0)
    (tmp_path / "go").touch()
    assert running.wait(40).trials[0].state == TrialState.COMPLETE, "what runs goes on"
    beats = {pool.device().beat_at}
    until(lambda: beats.add(pool.device().beat_at) or len(beats) > 4, what="some beats; none of them lifts the pause")
    until(lambda: pool.device().state == "paused", what="a paused worker")
    assert [trial.state for trial in waiting.trials] in ([], [TrialState.WAITING])
    assert command(pool, "resume", name).returncode == 0
    assert waiting.wait(40).trials[0].state == TrialState.COMPLETE
    check_invariants(pool)


def test_a_drained_worker_finishes_what_it_runs_and_ends(make_pool: PoolMaker, command, tmp_path):
    pool = make_pool()
    handle = pool.submit(wait_for(tmp_path / "go"), 2, max_concurrent_trials=1)
    until(lambda: pool.device().running, what="a running trial")
    assert command(pool, "drain").returncode == 0
    until(lambda: pool.device().state == "draining", what="a draining worker")
    done = command(pool, "drain", "--wait", "--timeout", "0.1")
    assert done.returncode == 1
    assert "after 0.1 s there still run: " in done.stderr and f"{handle.study_name}/0" in done.stderr
    (tmp_path / "go").touch()
    assert command(pool, "drain", "--wait", "--timeout", "60").returncode == 0
    until(lambda: not pool.devices(), what="the end of the worker")
    states = [trial.state for trial in handle.trials]
    assert states[0] == TrialState.COMPLETE
    assert states[1:] in ([], [TrialState.WAITING]), "the second one was left for another worker"
    done = command(pool, "drain", "--wait")
    assert (done.returncode, done.stdout) == (0, "no worker runs on this host\n")


def test_with_stay_it_is_there_until_it_is_stopped_or_resumed(pool: LivePool, command):
    """As a pod's preStop hook needs it: the hook would be killed with the worker, and reported as failed."""
    before = pool.device()
    assert command(pool, "drain", "--stay", "--wait").returncode == 0
    beats = {before.beat_at}
    until(lambda: beats.add(pool.device().beat_at) or len(beats) > 4, what="some beats")
    until(
        lambda: (pool.device().name, pool.device().state) == (before.name, "draining"), what="the same worker, draining"
    )
    assert command(pool, "resume").returncode == 0
    check_invariants(pool)


def test_a_word_that_names_nobody_is_wrong_input(pool: LivePool, command):
    done = command(pool, "pause", "nobody")
    assert done.returncode == 2
    assert f"no worker, host or device of the pool is called 'nobody'; workers: {pool.device().name}" in done.stderr
    until(lambda: pool.device().state == "ready", what="a ready worker")


def test_a_command_that_is_for_another_or_signed_by_a_stranger_is_not_obeyed(pool: LivePool):
    """The order of one channel shows that both were heard: the third, which is right, is obeyed."""
    connection, name = pool.pool.connection, pool.device().name
    signer = Signer((pool.state_dir / "secret").read_bytes().strip())
    events = Events(connection, pool.pool.settings.pool, signer)
    stranger = Events(connection, pool.pool.settings.pool, Signer(b"a stranger's secret, long enough"))
    with events.subscribe() as answers:
        stranger.command("drain", workers=[name], id="forged")
        events.command("drain", workers=["another"], id="another's")
        events.command("pause", workers=[name], id="right", reason="a test")
        heard = []
        until(lambda: heard.extend(answers.wait(1)) or any(event.get("kind") == "obeyed" for event in heard))
    obeyed = [event["id"] for event in heard if event.get("kind") == "obeyed"]
    assert obeyed == ["right"]
    until(lambda: pool.device().state != "ready", what="the pause")
    until(lambda: pool.device().state == "paused", what="a paused worker")


def test_the_demand_for_workers_is_seen_before_any_worker_is_ready(pool: LivePool, command, tmp_path):
    """What KEDA reads: waiting, running, and those that would be created if there were devices enough."""
    key = f"vrampool:{pool.pool.settings.pool}:demand"
    demand = lambda: pool.pool.connection.llen(key)  # noqa: E731
    command(pool, "pause")
    handle = pool.submit(wait_for(tmp_path / "go"), 7, max_concurrent_trials=5, vram="300MiB")
    until(lambda: demand() == 5, what="a demand of 5")
    assert 0 < pool.pool.connection.ttl(key) <= 3_600
    command(pool, "resume")
    until(lambda: len(pool.device().running) == 3, what="three trials that run")
    assert demand() == 5, "running ones count, or a scaler would take their workers away"
    (tmp_path / "go").touch()
    handle.wait(60)
    until(lambda: demand() == 0, what="no demand")
