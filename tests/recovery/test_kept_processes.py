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
from vrampool.processes import EMBEDDED, KEEPER, RESTARTED, KeptProcess, is_alive, patiently, process_start_time

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


@pytest.mark.parametrize("module", ["vrampool coordinator", "vrampool_worker"])
def test_a_process_whose_valkey_is_the_host_s_own_waits_for_it_from_the_first_start_on(tmp_path: Path, module: str):
    """It may die in the moment in which the pool starts. Any other Redis that is not there is told at once."""
    (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "secret").chmod(0o600)
    env = {name: value for name, value in os.environ.items() if not name.startswith("VRAMPOOL_")} | {
        "VRAMPOOL_REDIS": f"unix://{tmp_path}/nothing.sock",
        "VRAMPOOL_STORAGE": f"sqlite:///{tmp_path}/study.db",
        "VRAMPOOL_STATE_DIR": str(tmp_path),
        "VRAMPOOL_GPU": "cpu",
    }
    command = [sys.executable, "-m", *module.split()]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "does not answer" in ended.stderr
    log = tmp_path / "log"
    with log.open("wb") as output:
        waiting = subprocess.Popen(command, env=env | {EMBEDDED: "1"}, stderr=output)
    try:
        until(lambda: log.read_text().count("tried again in") > 1 or waiting.poll() is not None, what="a second try")
        assert waiting.poll() is None
    finally:
        waiting.kill()
        waiting.wait()


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
