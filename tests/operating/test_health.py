"""`vrampool health`: it asks the processes of this host themselves, and nobody else has a say in it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from support.pools import LivePool
from support.waiting import until

from vrampool.health import FOLDER, Sign, SignOfLife, judge, look
from vrampool.processes import process_start_time

#: Commands and workers start in a second, and on a machine that does much else in many.
BUSY_S = 60.0
SIGN = Sign("worker", "w1", "host", 7, 1, limit_s=15.0, state="ready", ready=True)


@pytest.mark.parametrize(
    ("age_s", "there", "alive", "words"),
    [
        (1.0, True, True, "is ready"),
        (16.0, True, False, "is stuck: no sign of life for 16 s"),
        (1.0, False, False, "is gone"),
    ],
    ids=["touched", "silent", "dead"],
)
def test_a_process_lives_while_it_is_there_and_its_loop_turns(age_s, there, alive, words):
    verdict = judge(SIGN, age_s, there)
    assert (verdict.alive, verdict.ready) == (alive, alive)
    assert words in verdict.text


def test_one_that_is_not_ready_lives_and_says_why():
    sign = Sign("worker", "w1", "host", 7, 1, 15.0, "quarantined", False, reason="2 GiB did not come back", running=3)
    verdict = judge(sign, 1.0, True)
    assert (verdict.alive, verdict.ready) == (True, False)
    assert verdict.text == "worker w1 (pid 7) is quarantined: 2 GiB did not come back, runs 3"


def test_a_sign_is_written_when_it_is_news_and_else_only_touched(tmp_path):
    sign = SignOfLife(tmp_path, "worker", "GPU-1/x", name="w1", limit_s=15.0)
    sign.show("ready", ready=True)
    (path,) = (tmp_path / FOLDER).iterdir()
    inode = path.stat().st_ino
    os.utime(path, (0, 0))
    sign.show("ready", ready=True)
    assert path.stat().st_ino == inode
    assert time.time() - path.stat().st_mtime < 20
    sign.show("draining", ready=False, reason="asked to")
    assert [verdict.sign.state for verdict in look(tmp_path)] == ["draining"]
    sign.remove()
    assert look(tmp_path) == []


def test_a_folder_that_cannot_be_written_ends_no_worker(tmp_path, caplog):
    (tmp_path / FOLDER).write_text("in the way")
    sign = SignOfLife(tmp_path, "worker", "cpu", name="w1", limit_s=15.0)
    sign.show("ready", ready=True)
    sign.show("ready", ready=True)
    assert caplog.text.count("cannot be written") == 1


def test_whoever_starts_clears_away_what_a_killed_one_has_left(tmp_path):
    """A card that is used no more must not make a host unhealthy for ever; other hosts' signs are theirs."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    SignOfLife(tmp_path, "worker", "gone", name="w1", limit_s=15.0).show("ready", ready=True)
    (path,) = (tmp_path / FOLDER).iterdir()
    left = json.loads(path.read_text())
    path.write_text(json.dumps(left | {"pid": ended.pid}))
    (path.parent / "other.json").write_text(json.dumps(left | {"pid": ended.pid, "host": "another"}))
    assert [verdict.text for verdict in look(tmp_path)] == [f"worker w1 (pid {ended.pid}) is gone"]
    SignOfLife(tmp_path, "worker", "new", name="w2", limit_s=15.0)
    assert [item.name for item in path.parent.iterdir()] == ["other.json"]


def test_a_pid_that_was_given_out_again_is_another_process(tmp_path):
    sign = SignOfLife(tmp_path, "worker", "cpu", name="w1", limit_s=15.0)
    sign.show("ready", ready=True)
    (path,) = (tmp_path / FOLDER).iterdir()
    born = process_start_time(os.getpid())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"start_time": born - 1}))
    assert not look(tmp_path)[0].alive


def test_where_nothing_runs_nothing_is_healthy(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "vrampool", "health", "--state-dir", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "no worker or coordinator has left a sign" in done.stdout


def test_a_probe_loads_nothing_heavy(tmp_path):
    """It runs every few seconds on every node: neither Optuna nor Redis nor a database, and no entry points."""
    program = (
        "import sys\nfrom vrampool.cli import main\n"
        f"try: main(['health', '--state-dir', {str(tmp_path)!r}])\n"
        "except SystemExit: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    words = set(done.stdout.splitlines()[-1].split())
    assert not words & {"optuna", "redis", "rq", "sqlalchemy", "rich", "numpy", "vrampool_worker", "importlib.metadata"}
    assert "vrampool.health" in words


def test_a_pool_is_healthy_and_ready_and_a_worker_that_hangs_or_dies_is_noticed(pool: LivePool, command):
    until(lambda: command(pool, "health", "--ready").returncode == 0, what="readiness")
    worker = pool.device().pid
    os.kill(worker, signal.SIGSTOP)
    try:
        until(lambda: psutil.Process(worker).status() == psutil.STATUS_STOPPED, what="a worker that hangs")
        (sign,) = (pool.state_dir / FOLDER).glob("worker*.json")  # and not what it may be writing just now
        os.utime(sign, (time.time() - 60,) * 2)
        done = command(pool, "health")
        assert done.returncode == 1
        assert re.search(rf"\(pid {worker}\) is stuck: no sign of life for \d+ s", done.stdout), done.stdout
        assert command(pool, "health", "--role", "coordinator").returncode == 0
    finally:
        os.kill(worker, signal.SIGCONT)
    until(lambda: command(pool, "health").returncode == 0, what="a sign of life", timeout_s=BUSY_S)

    psutil.Process(worker).kill()
    other = f"(pid {worker})"
    until(lambda: other not in command(pool, "health").stdout, what="another worker in its place", timeout_s=BUSY_S)
    until(lambda: command(pool, "health", "--ready").returncode == 0, what="readiness", timeout_s=BUSY_S)
    found = json.loads(command(pool, "health", "--json").stdout)
    assert found["ok"] and {item["sign"]["role"] for item in found["processes"]} == {"worker", "coordinator"}


def test_without_redis_a_worker_lives_but_is_not_ready(make_pool, command):
    """Restarting it would end the trials it runs, and help nobody."""
    pool = make_pool(lease_ttl_s=1.0)
    until(lambda: command(pool, "health", "--ready").returncode == 0, what="readiness")
    host = psutil.Process(pool.pool.local.record.pid)
    (valkey,) = (child for child in host.children(recursive=True) if child.name().startswith("valkey-server"))
    valkey.suspend()
    try:
        until(lambda: command(pool, "health", "--ready").returncode == 1, what="not ready")
        said = [""]
        try:
            until(lambda: said.append(command(pool, "health").stdout) or "cut off: Redis has not answered" in said[-1])
        except AssertionError:
            pytest.fail(f"the worker's last word was: {said[-1]}")
        assert command(pool, "health").returncode == 0
    finally:
        valkey.resume()
    until(lambda: command(pool, "health", "--ready").returncode == 0, what="readiness")


def test_an_end_in_order_leaves_no_sign(make_pool):
    pool = make_pool()
    folder = pool.state_dir / FOLDER
    until(lambda: len(list(folder.glob("*.json"))) == 2, what="both signs")
    make_pool.close()
    assert list(folder.glob("*.json")) == []
