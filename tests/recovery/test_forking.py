"""Processes that are forked stand in for commands: they share the imports of the first one, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
from recovery.processes import lives
from support.pools import FAST, PROBE
from support.waiting import until

import vrampool

WORDS = ["python", "-m", "vrampool", "coordinator", "--exit-when-idle"]


def in_a_process(program: str, tmp_path: Path, *, limit_s: float = 30.0) -> dict[str, Any]:
    """Run a program in a fresh interpreter: whoever forks must have no second thread. Return what it wrote."""
    out = tmp_path / "out.json"
    head = f"""
        import json, os, signal, subprocess, sys, threading, time
        from pathlib import Path
        from vrampool import forking
        from vrampool.forking import Prepared, fork
        WORDS, FOLDER = {WORDS!r}, Path({str(tmp_path)!r})
        def write(**found): Path({str(out)!r}).write_text(json.dumps(found))
        """
    text = textwrap.dedent(head) + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stderr
    return {**json.loads(out.read_text()), "stderr": done.stderr, "stdout": done.stdout}


def test_a_fork_has_its_own_environment_group_streams_descriptors_and_handlers(tmp_path: Path):
    found = in_a_process(
        """
        def is_open(fd):
            try:
                return os.path.samestat(os.fstat(fd), pipe)
            except OSError:
                return False

        def run():
            cmdline = Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode()
            print("said")
            write(
                env=dict(os.environ), c_env=subprocess.run(["env"], capture_output=True, text=True).stdout,
                group=os.getpgid(0), pid=os.getpid(), parent=os.getppid(), stdin=sys.stdin.read(), argv=sys.argv,
                fds=[is_open(kept), is_open(closed)],
                handlers=[signal.getsignal(n) is signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGHUP)],
                cmdline=cmdline, blocked=len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), forked=forking.was_forked(),
            )
            raise SystemExit(7)

        os.environ["LEFT"] = "1"
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGHUP, lambda *_: None)
        closed, kept = os.pipe()
        pipe = os.fstat(kept)
        log = os.open(FOLDER / "log", os.O_CREAT | os.O_WRONLY)
        env = {"PATH": os.environ["PATH"], "GIVEN": "x"}
        process = fork(run, WORDS, env=env, output=log, keep=[kept])
        assert process.wait(20) == 7 == process.poll() and not forking.was_forked()
        assert os.environ["LEFT"] == "1"
        """,
        tmp_path,
    )
    assert {**found["env"], "PATH": ""} == {"PATH": "", "GIVEN": "x"} and "LEFT" not in found["c_env"]
    assert found["group"] == found["pid"] and found["stdin"] == "" and found["argv"] == WORDS
    assert found["fds"] == [True, False] and found["handlers"] == [True, True]
    assert found["cmdline"] == " ".join(WORDS), "as `ps` shows it"
    assert (found["blocked"], found["forked"]) == (0, True)
    assert (tmp_path / "log").read_text() == "said\n"


def test_a_fork_never_comes_back_into_the_code_it_came_from(tmp_path: Path):
    found = in_a_process(
        """
        import atexit
        def boom(): raise RuntimeError("boom")
        def leave(): atexit.register(lambda: (FOLDER / "left").touch())
        before = os.getpid()
        codes = [fork(run, WORDS, env={}).wait(20) for run in (boom, leave, lambda: 5, lambda: sys.exit("words"))]
        assert os.getpid() == before
        hangs = fork(lambda: time.sleep(60), WORDS, env={})
        try:
            hangs.wait(0.01)
        except subprocess.TimeoutExpired:
            hangs.kill()
        write(codes=[*codes, hangs.wait()])
        hangs.send_signal(signal.SIGTERM)  # waited for: nobody gets it
        """,
        tmp_path,
    )
    assert found["codes"] == [1, 0, 5, 1, -signal.SIGKILL] and (tmp_path / "left").exists()
    assert "RuntimeError: boom" in found["stderr"] and "words" in found["stderr"]


def test_one_that_was_prepared_does_nothing_until_it_is_told_to(tmp_path: Path):
    found = in_a_process(
        """
        def run():
            return int(os.environ["CODE"])
        used, dropped, gone = (Prepared(run, WORDS, lambda: None) for _ in range(3))
        dropped.drop()
        gone._process.kill()
        gone._process.wait()
        process = used.begin({"CODE": "9"})
        write(code=process.wait(20), dropped=dropped._process.poll(), gone=gone.begin({"CODE": "1"}) is None)
        """,
        tmp_path,
    )
    assert (found["code"], found["dropped"], found["gone"]) == (9, 0, True)


def test_one_that_was_prepared_ends_with_whoever_has_prepared_it(tmp_path: Path):
    found = in_a_process(
        """
        first, second = (Prepared(lambda: 0, WORDS) for _ in range(2))
        write(pids=[first._process.pid, second._process.pid])
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL) if os.fork() == 0 else os.wait()
        os._exit(0)
        """,
        tmp_path,
    )
    until(lambda: not any(psutil.pid_exists(pid) and lives(psutil.Process(pid)) for pid in found["pids"]))


def test_with_a_second_thread_nobody_forks(tmp_path: Path):
    found = in_a_process(
        """
        before = forking.can_fork()
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        write(before=before, after=forking.can_fork())
        os._exit(0)
        """,
        tmp_path,
    )
    assert (found["before"], found["after"]) == (True, False)


# ---- in a pool ---------------------------------------------------------------------------------------


@pytest.fixture
def pool(own_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROBE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("VRAMPOOL_TEST_PROBE", str(tmp_path))
    with vrampool.Pool(state_dir=tmp_path / "state", **FAST) as made:
        yield made


def modules_of(pid: int, folder: Path) -> set[str]:
    answer = folder / f"{pid}.json"
    answer.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    until(answer.exists, what=f"an answer of process {pid}")
    return set(json.loads(answer.read_text())["modules"])


def part(pool: vrampool.Pool, ending: str) -> psutil.Process | None:
    """Return the pool's process whose command ends so."""
    assert pool.local is not None
    for process in psutil.Process(pool.local.record.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if " ".join(process.cmdline()).endswith(ending):
                return process
    return None


#: A module that none of these processes imports by itself.
HOSTS = "vrampool.local.ahead"
PARTS = ["-m vrampool coordinator", "-m vrampool_worker.supervisor", "-m vrampool_worker"]


def test_the_processes_of_a_pool_are_forked_and_look_like_the_commands_they_stand_for(pool, tmp_path: Path):
    pool.submit(lambda trial: 1.0, 1, vram="100MiB").wait(30)
    for ending in PARTS:
        process = part(pool, ending)
        assert process is not None, ending
        assert os.getpgid(process.pid) == process.pid
        assert HOSTS in modules_of(process.pid, tmp_path), "it came from the host"


def test_what_is_started_again_is_a_fresh_interpreter(pool, tmp_path: Path):
    until(lambda: pool.devices(), what="a worker")
    for ending in PARTS:
        process = until(lambda ending=ending: part(pool, ending), what=ending)
        process.kill()
        until(
            lambda ending=ending, process=process: (found := part(pool, ending)) and found != process,
            what=f"another {ending}",
            timeout_s=30,
        )
    assert [trial.value for trial in pool.submit(lambda trial: 1.0, 2, vram="100MiB").wait(60).trials] == [1.0, 1.0]
    for ending in PARTS:
        process = part(pool, ending)
        assert process is not None and HOSTS not in modules_of(process.pid, tmp_path)


def test_when_the_host_is_killed_they_end_and_another_pool_can_start(own_settings, tmp_path: Path):
    pool = vrampool.Pool(state_dir=tmp_path / "state", **FAST)
    assert pool.local is not None
    host = psutil.Process(pool.local.record.pid)
    parts = host.children(recursive=True)
    assert len(parts) >= 4
    host.kill()
    until(lambda: not any(lives(process) for process in parts), what="their end")
    with vrampool.Pool(state_dir=tmp_path / "state", **FAST) as second:
        assert only_value(second) == 1.0


def only_value(pool: vrampool.Pool) -> float:
    (trial,) = pool.submit(lambda trial: 1.0, 1, vram="100MiB").wait(60).trials
    assert trial.value is not None
    return float(trial.value)
