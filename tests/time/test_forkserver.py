"""Trials that are forked from a server have all that spawned ones have: keeper, group, ends, cap, own randomness."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.child_driver import ChildDriver, Story, alive, wait_for

from vrampool_worker import process_tree
from vrampool_worker.child import forkserver
from vrampool_worker.children import child as children
from vrampool_worker.children.forkserver import ForkServer

#: A small module of the standard library that nothing else imports.
NEEDED = "colorsys"
WORKER = Path(__file__).with_name("forking_worker.py")


class ForkDriver(ChildDriver):
    """Drives children that are forked."""

    def __init__(self, folder: Path, modules: list[str]) -> None:
        super().__init__(folder)
        self.server = ForkServer({**os.environ, "FROM_SERVER": "yes"}, modules)
        self.server.start()
        wait_for(lambda: self.server._is_ready() or self.server.refusal, limit_s=60)

    def spawn(self, preload: tuple[str, ...] = (), env: object = None) -> Story:
        self._numbers += 1
        child = children.spawn(dict(os.environ), preload, self.settings, server=self.server)
        story = Story(child, self.folder / f"log{self._numbers}")
        self.stories[child] = story
        child.register(self.selector, self._on_event, self.timers.at)
        return story


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[ForkDriver]:
    made = ForkDriver(tmp_path, ["json", "numpy", "nonesuch_module"])
    yield made
    made.close()
    made.server.close()


def test_a_forked_trial_runs_with_everything_imported(forks):
    story = forks.run(
        """
import os, sys

BEFORE = "numpy" in sys.modules

def objective(trial):
    print("said in the trial")
    trial.set_user_attr("before", BEFORE)
    trial.set_user_attr("env", os.environ.get("FROM_SERVER"))
    trial.set_user_attr("threads", len(os.listdir("/proc/self/task")))
    trial.set_user_attr("argv", sys.argv)
    return 2.0
"""
    )
    assert story.child.forked and story.outcome.values == [2.0]
    attrs = story.study.trials[0].user_attrs
    assert attrs["before"] and attrs["env"] == "yes" and "forkserver" not in " ".join(attrs["argv"])
    assert "said in the trial" in story.log
    assert story.exited["exit_code"] == 0 and story.exited["max_rss_bytes"] > 0


def test_its_keeper_is_the_workers_own_child_in_a_group_of_its_own(forks):
    story = forks.start(forks.spawn(), "def objective(trial):\n    import time\n    time.sleep(60)")
    forks.until(lambda: "started" in story.kinds)
    keeper = story.child.keeper_pid
    assert keeper in process_tree.children_of(os.getpid())
    assert os.getpgid(keeper) == keeper != os.getpgid(0)
    assert os.getsid(story.child.pid) == story.child.pid
    story.child.kill()
    forks.until(lambda: story.child.gone)
    assert story.exited["signal"] == signal.SIGKILL
    wait_for(lambda: not alive(keeper))


def test_whatever_it_starts_ends_with_it(forks, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    source = f"""
import os, subprocess, sys, time

def objective(trial):
    code = "import os, time; open({str(marks)!r} + '/' + str(os.getpid()), 'w').close(); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        os.execve(sys.executable, [sys.executable, "-c", code], {{}})
    while len(os.listdir({str(marks)!r})) < 2:
        time.sleep(0.01)
    return 1.0
"""
    story = forks.run(source)
    assert story.outcome.values == [1.0]
    assert not any(alive(int(path.name)) for path in marks.iterdir())


def test_it_is_held_to_its_cap_and_may_be_stopped(forks):
    story = forks.run("def objective(trial):\n    return float(len(bytearray(2 * 1024**3)))", cap_bytes=64 * 1024**2)
    assert story.outcome.kind == "oom"
    waiting = forks.start(forks.spawn(), "def objective(trial):\n    import time\n    time.sleep(60)")
    forks.until(lambda: "started" in waiting.kinds)
    waiting.child.ask_stop()
    forks.until(lambda: waiting.child.gone)
    assert waiting.outcome.kind == "stopped"


def test_two_trials_draw_different_numbers_unless_they_are_seeded_alike(forks):
    source = "def objective(trial):\n    import numpy, random\n    return [numpy.random.rand(), random.random()]"
    unseeded = [forks.run(source, env={"VRAMPOOL_SEED": "off"}).log or index for index in range(2)]
    drawn = []
    for seed in ("off", "off", "7", "7"):
        story = forks.run(
            "def objective(trial):\n    import numpy, random\n"
            "    trial.set_user_attr('drawn', [float(numpy.random.rand()), random.random()])\n    return 0.0",
            env={"VRAMPOOL_SEED": seed},
        )
        drawn.append(story.study.trials[0].user_attrs["drawn"])
    assert unseeded and drawn[0][0] != drawn[1][0] and drawn[0][1] != drawn[1][1]
    assert drawn[2] == drawn[3]


def test_where_the_server_is_gone_trials_are_spawned_and_those_that_run_go_on(forks):
    running = forks.start(forks.spawn(), "def objective(trial):\n    trial.suggest_float('x', 0, 1)\n    return 1.0")
    assert running.child.forked
    os.kill(forks.server.pid, signal.SIGKILL)
    later = forks.run("def objective(trial):\n    return 3.0")
    assert not later.child.forked and later.outcome.values == [3.0]
    forks.until(lambda: running.child.gone)
    assert running.outcome.values == [1.0]


def test_the_server_imports_what_trials_were_seen_to_need(forks):
    forks.server.register(forks.selector)
    assert not seen_by(forks, NEEDED)
    forks.server.include(["json", NEEDED])
    assert forks.server.imports(time.monotonic()), "trials wait for it"
    forks.until(lambda: forks.server.ready)
    assert seen_by(forks, NEEDED)
    pid = forks.server.pid
    forks.server.include(["json", NEEDED])
    assert forks.server.ready and forks.server.pid == pid, "it has all that already"


def test_what_the_server_died_of_it_is_not_told_again(forks, tmp_path, monkeypatch):
    (tmp_path / "deadly_module.py").write_text("import os\nos._exit(3)")
    forks.server._environment["PYTHONPATH"] = str(tmp_path)
    forks.server.close()
    forks.server.start()
    forks.server.register(forks.selector)
    forks.until(lambda: forks.server.ready)
    forks.server.include(["deadly_module"])
    forks.until(lambda: forks.server.pid is None)
    assert not forks.run("def objective(trial):\n    return 1.0").child.forked
    monkeypatch.setattr(forks.server, "_not_before_s", 0.0)
    forks.server.launch("nowhere")  # starts it again
    forks.until(lambda: forks.server.ready)
    forks.server.include(["deadly_module"])
    assert forks.server.ready
    assert forks.run("def objective(trial):\n    return 1.0").child.forked


def seen_by(forks: ForkDriver, name: str) -> bool:
    """Return whether a forked trial finds a module imported."""
    story = forks.run(f"def objective(trial):\n    import sys\n    return float({name!r} in sys.modules)")
    assert story.child.forked
    return story.outcome.values == [1.0]


def test_torch_is_told_before_the_fork_to_undo_nothing_at_exit(tmp_path):
    """A trial that undid it, or was told of each thing, would copy the pages that this writes to: 26 MiB."""
    made = ForkDriver(tmp_path, ["torch"])
    try:
        story = made.run(
            "import weakref\ndef objective(trial):\n"
            "    return float(sum(item.atexit for item in weakref.finalize._registry))\n"
        )
        assert story.child.forked and story.outcome.values == [0.0]
    finally:
        made.close()
        made.server.close()


def test_when_the_worker_is_killed_nothing_of_it_stays(tmp_path):
    """Server, keeper and trial: each dies by itself."""
    worker = subprocess.Popen([sys.executable, str(WORKER), str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    pids = json.loads(worker.stdout.readline())
    assert all(alive(pid) for pid in pids.values())
    worker.kill()
    worker.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids.values()))


def test_a_server_with_a_thread_of_its_own_forks_nothing(tmp_path, monkeypatch):
    source = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()"
    (tmp_path / "threaded_module.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ForkServer(dict(os.environ), ["threaded_module"])
    server.start()
    wait_for(lambda: server._is_ready() or server.refusal, limit_s=30)
    assert server.refusal == "importing has started 1 threads, which a fork would lose"
    assert server.launch("nowhere") is None and server.pid is None


def test_a_server_that_has_opened_a_card_forks_nothing(monkeypatch):
    monkeypatch.setattr(forkserver.os, "readlink", lambda path: "/dev/nvidia0")
    assert "CUDA does not survive a fork" in forkserver._open_card()
