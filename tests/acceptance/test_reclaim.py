"""`vrampool reclaim`: what trials left behind when worker and keeper were killed at once, and never anybody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.commands import call
from support.pools import LivePool, PoolMaker, is_gone
from support.waiting import until

from vrampool_worker import lineage, process_tree
from vrampool_worker.children.launch import scratch_folder

OBJECTIVES = Path(__file__).with_name("release_objectives.py")
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def worker_and_keeper(pool: LivePool) -> tuple[psutil.Process, list[psutil.Process]]:
    worker = psutil.Process(pool.device().pid)
    return worker, worker.children()


def kill_at_once(worker: psutil.Process, keepers: list[psutil.Process]) -> None:
    """Kill a worker and its keepers so that none of them can end what is below it."""
    for keeper in keepers:
        keeper.suspend()
    worker.suspend()  # it is a subreaper, and would end what comes up to it
    for keeper in keepers:
        keeper.kill()
    worker.kill()
    until(lambda: is_gone(worker), what="the end of the worker")


def daemons(folder: Path) -> list[psutil.Process]:
    """Return the daemons that trials have started, oldest first."""
    found = sorted(folder.glob("*.daemon"), key=lambda path: path.stat().st_mtime_ns)
    return [psutil.Process(int(path.stem)) for path in found if psutil.pid_exists(int(path.stem))]


def test_a_daemon_that_outlived_worker_and_keeper_is_found_named_and_ended(make_pool: PoolMaker, tmp_path, capsys):
    """It has cleared its environment and left session, directory and parents; that of a living worker is left alone."""
    pool = make_pool(max_trials=1, spares=0)
    gate = tmp_path / "gate"
    env = {"LEFT": str(tmp_path), "GATE": str(gate)}
    handle = pool.submit(f"{OBJECTIVES}:leave_a_daemon", 1, env=env)
    (orphan,) = until(lambda: daemons(tmp_path), what="a daemon", timeout_s=60)
    worker, keepers = worker_and_keeper(pool)
    kill_at_once(worker, keepers)
    assert not is_gone(orphan), "nobody is left to end it"
    at = ("--state-dir", pool.state_dir)

    # The trial is tried again by the worker's successor, with a daemon of its own.
    until(lambda: len(daemons(tmp_path)) == 2, what="the daemon of the second attempt", timeout_s=60)
    other = next(item for item in daemons(tmp_path) if item.pid != orphan.pid)
    listed = call(capsys, "reclaim", "--json", *at)
    assert listed.code == 0, listed
    found = listed.json["processes"]
    assert [item["pid"] for item in found if item["worker_pid"] == worker.pid] == [orphan.pid]
    assert other.pid not in [item["pid"] for item in found]
    text = call(capsys, "reclaim", *at).out
    assert f"pid {orphan.pid} (" in text and "time.sleep(600)" in text and f"of worker {worker.pid}, which is" in text
    assert "reclaim --yes" in text
    assert not is_gone(orphan), "it was only listed"

    done = call(capsys, "reclaim", "--yes", *at)
    assert done.code == 0 and "all of it is gone" in done.out, done
    assert is_gone(orphan) and not is_gone(other)
    gate.touch()
    handle.wait(40)
    until(lambda: is_gone(other), what="the end of the other daemon with its trial")


@pytest.fixture
def no_mps(monkeypatch):
    """Folders of MPS daemons lie in /tmp, for all users of this machine."""
    monkeypatch.setattr("vrampool_worker.reclaim.stale_mps_folders", lambda: iter(()))


def test_directories_of_trials_whose_worker_is_gone_are_removed(no_mps, tmp_path, capsys):
    """And none that a living process may use, nor one that is not ours."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    folder = scratch_folder(tmp_path)
    for name in (f"{gone.pid}-1", f"{os.getpid()}-1", "notes"):
        (folder / name).mkdir(parents=True)
    (folder / f"{gone.pid}-1" / "checkpoint").write_text("x")
    listed = call(capsys, "reclaim", "--json", "--state-dir", tmp_path)
    assert listed.json["folders"] == [str(folder / f"{gone.pid}-1")]
    assert (folder / f"{gone.pid}-1").is_dir(), "it was only listed"
    done = call(capsys, "reclaim", "--yes", "--json", "--state-dir", tmp_path)
    assert done.code == 0 and done.json["still"] == {"processes": [], "folders": []}
    assert sorted(path.name for path in folder.iterdir()) == sorted([f"{os.getpid()}-1", "notes"])


def test_where_nothing_is_left_it_says_so(no_mps, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("vrampool_worker.reclaim._orphans", lambda proc: iter(()))
    done = call(capsys, "reclaim", "--state-dir", tmp_path)
    assert done.code == 0 and done.out.strip() == "nothing is left behind"


# ---- the mark ----------------------------------------------------------------------------------------


@pytest.fixture
def started():
    """Start processes, and end them."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> int:
        running.append(subprocess.Popen(command))
        return running[-1].pid

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_a_mark_is_inherited_whatever_is_cleared_and_names_the_worker(started):
    with lineage.marked():
        pid = started("env", "-i", "setsid", *SLEEP)
    until(lambda: psutil.Process(pid).environ() == {}, what="a cleared environment")
    mark = lineage.mark_of(pid)
    assert mark is not None and mark.worker_pid == os.getpid() and mark.worker_lives
    assert lineage.mark_of(os.getpid()) is None, "it ends with the worker"
    assert lineage.mark_of(started(*SLEEP)) is None


def test_a_process_that_has_the_workers_number_by_now_is_not_the_worker():
    own = process_tree.started_at(os.getpid())
    assert own is not None
    assert lineage._parse(lineage.own_mark()).worker_lives
    assert not lineage._parse(lineage.own_mark() ^ 1).worker_lives, "started at another time"


@pytest.mark.parametrize("limit", [0, 2**20, 8 * 2**30, 2**63 - 1])
def test_a_limit_that_somebody_else_has_set_is_no_mark(limit):
    assert lineage._parse(limit) is None


def test_a_process_of_another_user_or_namespace_is_nobody_of_ours(tmp_path):
    """As a container's look from its host: in there the worker has another number, and lives."""
    from vrampool_worker import reclaim

    limits = f"Limit  Soft\nMax resident set          {lineage.own_mark() ^ 1}    unlimited   bytes\n"
    proc = tmp_path / "proc"
    for pid, namespace in ((os.getpid(), "pid:[1]"), (1, "pid:[2]")):
        (proc / str(pid) / "ns").mkdir(parents=True)
        (proc / str(pid) / "ns" / "pid").symlink_to(namespace)
        (proc / str(pid) / "limits").write_text(limits)
    assert list(reclaim._orphans(proc)) == []
    (proc / "1" / "ns" / "pid").unlink()
    (proc / "1" / "ns" / "pid").symlink_to("pid:[1]")
    assert [item.pid for item in reclaim._orphans(proc)] == [1], "that alone kept it out"


def test_a_worker_that_is_stopped_is_alive(started):
    """Suspended, or in a debugger: its trials are its own."""
    pid = started(*SLEEP)
    psutil.Process(pid).send_signal(signal.SIGSTOP)
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    ticks = process_tree.started_at(pid)
    assert ticks is not None
    assert lineage.Mark(pid, ticks & (2**26 - 1)).worker_lives


BOUNDED = """
import resource
from vrampool_worker import lineage
resource.setrlimit(resource.RLIMIT_RSS, (2**40, 2**40))
with lineage.marked():
    print(lineage.mark_of("self"), resource.getrlimit(resource.RLIMIT_RSS)[0] == 2**40)
"""


def test_a_limit_that_an_administrator_has_bounded_is_left_alone():
    """Then nothing is recognised, and nothing taken for ours."""
    done = subprocess.run([sys.executable, "-c", BOUNDED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "True"]
    assert "cannot be marked" in done.stderr
