"""A disk that is full, or cannot be written at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts.conftest import MakeHosts
from hosts.host import WORKER
from hosts.lasting import all_ran_once, runs_one
from hosts.many import ManyHosts
from optuna.trial import TrialState
from recovery.hardy import HardyPool
from support.disks import fill, small_disks
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
COMPLETE = TrialState.COMPLETE

#: Words before a command: its root file system is read-only, but for a small scratch directory and what is named.
READ_ONLY = """
set -e
for place in $WRITABLE; do mount --bind "$place" "$place"; done
mount -t tmpfs -o size=64m scratch "$SCRATCH"
mount -o remount,bind,ro /
mount -o remount,bind,ro /dev/shm 2>/dev/null || true
exec "$@"
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    with small_disks(tmp_path) as mount:
        yield mount


def test_a_worker_whose_disk_is_full_runs_on_and_tells_every_result(
    make_hosts: MakeHosts, small_disk: Callable[[str], Path]
):
    """What it cannot write are logs and signs of life: no trial depends on them."""
    hosts = make_hosts("h1")
    hosts["h1"].state_dir = small_disk("4m")
    hosts["h1"].coordinator()
    hosts["h1"].worker()
    hosts["h1"].await_ready()
    handle = hosts.submit("wait_at_gate", 4, vram="100MiB")
    for number in range(2):
        hosts.await_note("waiting", number)
    ballast = fill(hosts["h1"].state_dir)
    hosts.open_gate()
    trials = hosts.await_end(handle)
    assert [trial.state for trial in trials] == [COMPLETE] * 4, "two began on a full disk"
    assert hosts["h1"].runs(WORKER)
    ballast.unlink()
    all_ran_once(hosts, handle, 4)


def test_a_machine_whose_only_disk_is_full_loses_no_result(small_disk: Callable[[str], Path], tmp_path: Path):
    """Study, Redis and logs lie on one disk. A result that cannot be written is written when there is room again."""
    folder = small_disk("80m")
    pool = HardyPool(folder, mutants="own_locks")
    try:
        pool.begin(tmp_path)
        handle = pool.submit("wait_at_gate", 2)
        for number in range(2):
            pool.await_note("waiting", number)
        ballast = fill(folder)
        pool.open_gate()
        for number in range(2):
            pool.await_note("ended", number)
        until(lambda: not [1 for trial in pool.trials(handle) if trial.state == COMPLETE], what="nothing written")
        ballast.unlink()
        trials = pool.await_end(handle)
        assert [trial.state for trial in trials] == [COMPLETE] * 2
        assert pool.log.times("started") == pool.log.times("ended") == {0: 1, 1: 1}
        pool.run_one()
        pool.down()
    finally:
        pool.destroy()


# ---- A43: a read-only root file system ---------------------------------------------------------------------


def read_only(hosts: ManyHosts, name: str, scratch: Path, *writable: Path) -> dict[str, str]:
    """Let what is started on a host find its root read-only; return the variables it needs."""
    hosts[name].wrapper = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh"]
    scratch.mkdir()
    return {"SCRATCH": str(scratch), "WRITABLE": " ".join(map(str, writable)), "TMPDIR": str(scratch)}


def test_a_worker_runs_with_nothing_to_write_but_a_scratch_directory(
    make_hosts: MakeHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A43. As in a pod: no HOME, a read-only root, and TMPDIR."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    hosts = make_hosts("h1", "h2")
    notes = tmp_path / "notes"
    notes.mkdir()
    hosts.begin(notes)
    hosts["h2"].coordinator()
    env = read_only(hosts, "h1", tmp_path / "scratch", notes)
    hosts["h1"].worker(state_dir=None, env=env)
    hosts["h1"].await_ready()
    before = sorted(path.name for path in hosts["h1"].state_dir.iterdir())
    trial = runs_one(hosts)
    assert hosts.host_of(trial) == "h1"
    assert sorted(path.name for path in hosts["h1"].state_dir.iterdir()) == before, "it wrote into its directory"
    assert "Traceback" not in hosts["h1"].log(WORKER)


def test_a_worker_that_can_write_nowhere_says_where_it_wanted_to_and_takes_no_trial(
    make_hosts: MakeHosts, tmp_path: Path
):
    """A43. The text names the directory and the option."""
    hosts = make_hosts("h1", "h2")
    hosts["h2"].coordinator()
    env = read_only(hosts, "h1", tmp_path / "scratch")
    elsewhere = tmp_path / "elsewhere"
    supervisor = hosts["h1"].worker(state_dir=elsewhere, env=env)
    handle = hosts.submit("one", 1)
    assert supervisor.wait(30) == 2
    said = hosts["h1"].log(WORKER)
    assert f"cannot write to the state directory {elsewhere}" in said and "--state-dir" in said, said
    assert "Traceback" not in said
    assert hosts.trials(handle) == [], "it was there for a moment"
