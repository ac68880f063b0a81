"""What the pool's processes do for each other: start again what died, wait for what is away, end with their keeper."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from recovery.processes import lives
from support.waiting import until

from vrampool.errors import UnreachableError
from vrampool.processes import KEEPER, RESTARTED, KeptProcess, is_alive, patiently, process_start_time

ENDING = "import os; from vrampool.processes import end_with_keeper; end_with_keeper(); print('stayed', flush=True); "


def python(program: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True)


def test_a_kept_process_ends_with_its_keeper_whichever_way_that_dies(tmp_path: Path):
    """The keeper is killed with SIGKILL, so nobody could tell it."""
    said = tmp_path / "said"
    kept = f"{ENDING} open({str(said)!r}, 'w').write(str(os.getpid())); import time; time.sleep(60)"
    keeper = python(
        "import sys, time; from vrampool.processes import KeptProcess; "
        f"KeptProcess('x', [sys.executable, '-c', {kept!r}]).start(); time.sleep(60)"
    )
    until(lambda: said.exists() and said.read_text(), what="a kept process")
    process = psutil.Process(int(said.read_text()))
    keeper.kill()
    keeper.wait()
    until(lambda: not lives(process), what="its end")


def test_one_that_comes_to_life_when_its_keeper_is_gone_already_ends_at_once():
    """Python takes its time to start, and the kernel tells only those who have asked by then."""
    process = python(ENDING, {**os.environ, KEEPER: str(process_of_before())})
    assert (process.communicate(timeout=30)[0], process.returncode) == ("", 1)


def process_of_before() -> int:
    ended = python("pass")
    ended.communicate(timeout=30)
    return ended.pid


def test_one_that_nobody_keeps_stays():
    """A coordinator that is started by hand outlives its shell."""
    env = {name: value for name, value in os.environ.items() if name != KEEPER}
    assert python(ENDING, env).communicate(timeout=30)[0] == "stayed\n"


def test_variables_for_the_first_start_are_not_given_to_the_next(tmp_path: Path):
    """They name descriptors that only the first one gets: in another process the number is somebody else's."""
    log = tmp_path / "log"
    program = f"import os; print(os.environ.get('ONCE'), os.environ.get({RESTARTED!r}), flush=True); os._exit(1)"
    kept = KeptProcess("x", [sys.executable, "-c", program], log=log, first_env={"ONCE": "7"})
    kept.start()

    def started_twice() -> bool:
        kept.tend()
        return len(log.read_text().splitlines()) == 2

    until(started_twice, what="a second start")
    kept.wait(10)
    assert log.read_text().splitlines() == ["7 None", "None 1"]


def test_a_process_that_ended_and_that_nobody_waited_for_is_not_alive():
    """A notebook that has started a detached pool never waits for it: it must not attach to what is dead."""
    process = python("pass")
    start_time = process_start_time(process.pid)
    until(lambda: not is_alive(process.pid, start_time), what="its end")
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    process.communicate()


class Server:
    """Away for the first calls."""

    def __init__(self, away: int) -> None:
        self.calls = 0
        self._away = away

    def connect(self) -> str:
        self.calls += 1
        if self.calls <= self._away:
            raise UnreachableError("Redis does not answer")
        return "connected"


def test_only_a_process_that_takes_another_s_place_waits_for_a_server_that_is_away():
    """Whoever starts a pool hears at once that there is no Redis; later a restart of it must end nothing."""
    server = Server(2)
    with pytest.raises(UnreachableError):
        patiently(server.connect, env={})
    assert server.calls == 1
    assert patiently(server.connect, env={RESTARTED: "1"}) == "connected"
    assert server.calls == 3
