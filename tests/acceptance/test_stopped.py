"""A trial whose process somebody has stopped is left alone, and whoever waits for it is told."""

from __future__ import annotations

import os
import re
import signal
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState
from support import commands
from support.commands import call
from support.pools import LivePool, check_invariants, only
from support.waiting import until

import vrampool
from vrampool import waiting
from vrampool.health import look

SOURCE = """
import os, time
from pathlib import Path
def objective(trial):
    folder = Path(os.environ["FOLDER"])
    (folder / "begun").write_text(str(os.getpid()))
    (folder / "begun").rename(folder / "pid")
    while not (folder / "go").exists():
        time.sleep(0.01)
    return 1.0
"""


def stop(pid: int) -> None:
    """Stop a process, and wait until it is: on a busy machine its threads take a moment to hear of it."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, what="a process that is stopped")


@pytest.fixture
def stopped(pool: LivePool, tmp_path: Path) -> Iterator[tuple[vrampool.Handle, int]]:
    """A study whose only trial was stopped, and the process of that."""
    (tmp_path / "made.py").write_text(SOURCE)
    name = f"still-{uuid.uuid4().hex[:6]}"
    handle = pool.submit(f"{tmp_path / 'made.py'}:objective", 1, env={"FOLDER": str(tmp_path)}, study_name=name)
    until((tmp_path / "pid").exists, what="a trial that runs")
    pid = int((tmp_path / "pid").read_text())
    stop(pid)
    (tmp_path / "go").touch()  # it would end now
    try:
        yield handle, pid
    finally:
        if not handle.progress().final:
            os.kill(pid, signal.SIGCONT)


def trouble(pool: LivePool) -> str:
    return next((item.trouble for item in pool.device().running if item.trouble), "")


def test_it_is_told_by_status_by_why_and_to_who_waits_and_goes_on_when_continued(
    pool: LivePool, stopped, capsys, monkeypatch
):
    handle, pid = stopped
    words = f"its process {pid} was stopped before"
    until(lambda: words in trouble(pool), what="a word on it")
    assert f"`kill -CONT {pid}` lets it go on, `kill -KILL {pid}` ends this attempt" in trouble(pool)
    where = ("--state-dir", pool.state_dir)
    for command in (("status",), ("why", handle.study_name), ("why", f"{handle.study_name}/0")):
        done = call(capsys, *command, *where)
        assert done.code == 0 and words in " ".join(done.out.split()), done
    monkeypatch.setattr(waiting, "TROUBLE_LOOK_S", 0.0)
    with warnings.catch_warnings(record=True) as caught, pytest.raises(TimeoutError):
        warnings.simplefilter("always")
        handle.wait(1.5)
    assert len([item for item in caught if words in str(item.message)]) == 1, "once, however often it is looked at"
    assert only(handle).state == TrialState.RUNNING
    log = (pool.state_dir / "logs" / "worker.log").read_text()
    assert re.search(rf"WARNING .*{handle.study_name}/0 does nothing: {words}", log)
    os.kill(pid, signal.SIGCONT)
    assert only(handle.wait(20)).state == TrialState.COMPLETE
    assert not trouble(pool)
    check_invariants(pool)


def test_the_study_can_be_ended_all_the_same(pool: LivePool, stopped, capsys):
    handle, _ = stopped
    until(lambda: trouble(pool), what="a word on it")
    assert call(capsys, "stop", handle.study_name, "--now", "--state-dir", pool.state_dir).code == 0
    assert only(handle.wait(20)).state == TrialState.FAIL
    check_invariants(pool)


def test_a_stopped_coordinator_is_told_too(pool: LivePool, capsys, tmp_path):
    """No trial is made without it, and `vrampool run` would wait without a word."""
    pid = pool.pids()["coordinator"]
    until(lambda: pid in {verdict.sign.pid for verdict in look(pool.state_dir)}, what="its first sign of life")
    stop(pid)
    try:
        words = f"does nothing: its process {pid} was stopped; `kill -CONT {pid}` lets it go on"
        done = call(capsys, "status", "--state-dir", pool.state_dir)
        assert f"the coordinator {os.uname().nodename}-{pid} {words}" in " ".join(done.out.split()), done
        (tmp_path / "made.py").write_text("def objective(trial): return 1.0\n")
        running = commands.start(
            *("run", f"{tmp_path / 'made.py'}:objective", "--trials", "1", "--vram", "200MiB"),
            *("--state-dir", pool.state_dir),
        )
        assert running.stderr is not None
        told = running.stderr.readline()
        assert told.startswith("warning: the coordinator") and words in told
    finally:
        os.kill(pid, signal.SIGCONT)
    assert commands.finish(running).code == 0
    assert words not in call(capsys, "status", "--state-dir", pool.state_dir).out
