"""However a trial ends, its whole tree is gone before GONE, and the worker hears how."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.child_driver import ChildDriver, Story, alive, wait_for

from vrampool_worker.children.child import EventKind, clear_scratch
from vrampool_worker.children.launch import scratch_folder
from vrampool_worker.process_tree import children_of

SLEEPER = "import time; time.sleep(600)"


def pids_in(folder: Path) -> list[int]:
    """Return the process ids that an objective has written, one file each."""
    return [int(path.name) for path in folder.glob("[0-9]*")]


def tree(folder: Path, end: str) -> str:
    """Return an objective that leaves a process in its group, one in its own session, and a daemon without a trace."""
    return f"""
import os, signal, subprocess, sys, time

def note():
    open({str(folder)!r} + "/" + str(os.getpid()), "w").close()

def objective(trial):
    note()
    code = "import os, time; open({str(folder)!r} + '/' + str(os.getpid()), 'w').close(); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code])
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execve(sys.executable, [sys.executable, "-c", code], {{}})
    while len(os.listdir({str(folder)!r})) < 4:
        time.sleep(0.01)
    {end}
"""


@pytest.mark.parametrize(
    ("end", "code", "number"),
    [
        ("return 1.0", 0, None),
        ("os.kill(os.getpid(), signal.SIGKILL)", None, signal.SIGKILL),
        ("raise ValueError('no')", 0, None),
        ("os._exit(3)", 3, None),
        ("os.killpg(0, signal.SIGKILL)", None, signal.SIGKILL),
    ],
)
def test_nothing_of_a_trial_is_alive_once_it_is_gone(
    driver: ChildDriver, tmp_path: Path, end: str, code: int | None, number: int | None
) -> None:
    """In its group, in a session of its own, or a daemon that cleared its environment: all end with the trial."""
    folder = tmp_path / "pids"
    folder.mkdir()
    neighbour = driver.spawn()
    driver.until(lambda: neighbour.child.ready)
    story = driver.start(driver.spawn(), tree(folder, end))
    driver.until(lambda: len(pids_in(folder)) == 4)
    driver.until(lambda: story.child.gone)
    assert [pid for pid in pids_in(folder) if alive(pid)] == []
    assert (story.exited["exit_code"], story.exited["signal"]) == (code, number)
    assert story.kinds[-2:] == ["exited", "gone"]
    assert neighbour.child.pid is not None and alive(neighbour.child.pid)


def test_a_killed_child_takes_its_tree_along(driver: ChildDriver, tmp_path: Path) -> None:
    folder = tmp_path / "pids"
    folder.mkdir()
    story = driver.start(driver.spawn(), tree(folder, "time.sleep(600)"))
    driver.until(lambda: len(pids_in(folder)) == 4)
    story.child.kill()
    driver.until(lambda: story.child.gone)
    assert [pid for pid in pids_in(folder) if alive(pid)] == []
    assert story.exited["signal"] == signal.SIGKILL


def test_a_killed_keeper_leaves_nothing_behind(driver: ChildDriver, tmp_path: Path) -> None:
    """The trial dies with it; what it had started comes up to the worker, which ends it before GONE."""
    folder = tmp_path / "pids"
    folder.mkdir()
    neighbour = driver.spawn()
    driver.until(lambda: neighbour.child.ready)
    story = driver.start(driver.spawn(), tree(folder, "time.sleep(600)"))
    driver.until(lambda: len(pids_in(folder)) == 4)
    os.kill(story.child.keeper_pid, signal.SIGKILL)
    driver.until(lambda: story.child.gone)
    assert [pid for pid in pids_in(folder) if alive(pid)] == []
    assert story.exited == {"exit_code": None, "signal": None, "max_rss_bytes": None}
    assert neighbour.child.pid is not None and alive(neighbour.child.pid)


def test_a_keeper_that_does_not_answer_is_killed_itself(
    driver: ChildDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vrampool_worker.children.child.KEEPER_S", 0.2)
    story = driver.start(driver.spawn(), "import time\ndef objective(trial):\n    time.sleep(600)\n")
    driver.until(lambda: story.first(EventKind.STARTED))
    os.kill(story.child.keeper_pid, signal.SIGSTOP)
    story.child.kill()
    driver.until(lambda: story.child.gone)
    assert story.child.pid is not None and not alive(story.child.pid)


def test_nothing_is_alive_once_the_worker_is_killed(tmp_path: Path) -> None:
    """A worker that is SIGKILLed can end nothing; its keepers do."""
    folder = tmp_path / "pids"
    folder.mkdir()
    module = tmp_path / "made.py"
    module.write_text(tree(folder, "time.sleep(600)"))
    script = f"""
import sys
from pathlib import Path
from support.child_driver import ChildDriver
driver = ChildDriver(Path({str(tmp_path)!r}))
story = driver.start(driver.spawn(), {str(module)!r} + ":objective")
spare = driver.spawn()
driver.until(lambda: spare.child.ready)
print(story.child.keeper_pid, spare.child.keeper_pid, spare.child.pid, flush=True)
driver.until(lambda: False)
"""
    tests = Path(__file__).parent.parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env, text=True) as worker:
        assert worker.stdout is not None
        keepers = [int(pid) for pid in worker.stdout.readline().split()]
        wait_for(lambda: len(pids_in(folder)) == 4, limit_s=30)
        assert all(alive(pid) for pid in [*keepers, *pids_in(folder)])
        worker.kill()
        worker.wait()
        wait_for(lambda: not any(alive(pid) for pid in [*keepers, *pids_in(folder)]))


def test_a_segmentation_fault_is_told_as_its_signal(driver: ChildDriver) -> None:
    story = driver.run("import ctypes\ndef objective(trial):\n    ctypes.string_at(0)\n")
    assert story.exited["signal"] == signal.SIGSEGV
    assert "outcome" not in story.kinds


def test_an_exit_without_an_outcome_keeps_its_code(driver: ChildDriver) -> None:
    story = driver.run("import os\ndef objective(trial):\n    os._exit(0)\n")
    assert (story.exited["exit_code"], story.exited["signal"]) == (0, None)
    assert "outcome" not in story.kinds


def test_a_small_fork_bomb_is_ended_whole(driver: ChildDriver, tmp_path: Path) -> None:
    """Each process forks again as long as it lives; three hundred at most, for the sake of the machine."""
    story = driver.run(
        f"""
import os, time

def objective(trial):
    folder = {str(tmp_path)!r} + "/bomb"
    os.mkdir(folder)
    for _ in range(3):
        if os.fork() == 0:
            while len(os.listdir(folder)) < 300:
                open(folder + "/" + str(os.getpid()), "w").close()
                if os.fork() == 0:
                    os.setsid()
                else:
                    time.sleep(0.005)
            time.sleep(600)
    while len(os.listdir(folder)) < 100:
        time.sleep(0.01)
    return 1.0
"""
    )
    assert story.outcome.kind == "value"
    assert [pid for pid in pids_in(tmp_path / "bomb") if alive(pid)] == []


def test_shared_memory_of_a_killed_trial_is_given_back(driver: ChildDriver, tmp_path: Path) -> None:
    """Python's resource tracker gets the time to remove it before it is ended too."""
    story = driver.start(
        driver.spawn(),
        f"""
import os, signal
from multiprocessing import shared_memory

def objective(trial):
    held = shared_memory.SharedMemory(create=True, size=4096)
    open({str(tmp_path / "name")!r}, "w").write(held.name)
    os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    driver.until(lambda: story.child.gone)
    name = (tmp_path / "name").read_text()
    assert name and not Path("/dev/shm", name).exists()


def test_the_scratch_directory_is_removed(driver: ChildDriver) -> None:
    """An objective without a workdir runs in a directory of its own, which goes with it, files and all."""
    story = driver.run(
        "import os\ndef objective(trial):\n    open('checkpoint', 'w').write('x')\n    print(os.getcwd())\n"
        "    return 1.0\n"
    )
    folder = Path(story.log.strip())
    assert folder.is_relative_to(driver.settings.state_dir)
    wait_for(lambda: not folder.exists())


def test_scratch_of_workers_that_are_gone_is_cleared(driver: ChildDriver) -> None:
    """A keeper that was killed could not do it itself."""
    folder = scratch_folder(driver.settings.state_dir)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    for name in (f"{gone.pid}-1", f"{os.getpid()}-99", "notes"):
        (folder / name / "deep").mkdir(parents=True)
    clear_scratch(driver.settings.state_dir)
    assert sorted(path.name for path in folder.iterdir()) == sorted([f"{os.getpid()}-99", "notes"])


def test_a_spawn_that_fails_leaves_nothing_behind(driver: ChildDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor and no process, at whichever step descriptors ran out."""
    before = sorted(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [fd for fd in range(1000) if str(fd) not in before]
    failures = 0
    for room in range(12):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[room], limits[1]))
        try:
            driver.spawn()
        except OSError:
            failures += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        if not driver.stories:
            assert sorted(os.listdir("/proc/self/fd")) == before
    assert failures >= 5
    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", lambda pid: (_ for _ in ()).throw(OSError("no more")))
        descriptors, children = os.listdir("/proc/self/fd"), children_of(os.getpid())
        with pytest.raises(OSError, match="no more"):
            driver.spawn()
        assert os.listdir("/proc/self/fd") == descriptors
        assert children_of(os.getpid()) == children


def test_a_spare_is_used_once_and_ends_when_it_is_not_needed(driver: ChildDriver) -> None:
    spare = driver.spawn()
    driver.until(lambda: spare.child.ready)
    assert spare.child.pid is not None
    driver.start(
        spare, "import os\ndef objective(trial):\n    trial.set_user_attr('pid', os.getpid())\n    return 1.0\n"
    )
    driver.until(lambda: spare.child.gone)
    assert spare.trial is not None and spare.trial.user_attrs["pid"] == spare.child.pid
    with pytest.raises(AssertionError, match="one trial"):
        driver.start(spare, "def objective(trial): return 1.0")
    unused = driver.spawn()
    driver.until(lambda: unused.child.ready)
    unused.child.kill()
    driver.until(lambda: unused.child.gone)
    assert unused.child.pid is not None and not alive(unused.child.pid)


@pytest.mark.slow
def test_two_hundred_children_leave_no_descriptor_and_no_corpse(driver: ChildDriver) -> None:
    target = driver.module(
        "import os\ndef objective(trial):\n"
        "    if trial.number % 4 == 1: raise ValueError('no')\n"
        "    if trial.number % 4 == 2: os.kill(os.getpid(), 9)\n"
        "    return 1.0\n"
    )
    counts: list[int] = []

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    import optuna

    study = optuna.create_study()
    for _ in range(20):
        stories: list[Story] = [driver.start(driver.spawn(), target, study=study) for _ in range(10)]
        driver.until(lambda stories=stories: all(story.child.gone for story in stories), limit_s=60)
        counts.append(descriptors())
    assert counts[-1] <= counts[0] + 2
    from support.child_driver import _is_child

    driver.until(lambda: not any(_is_child(story.child.keeper_pid) for story in driver.stories.values()))
