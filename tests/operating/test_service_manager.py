"""`Type=notify`: what systemd is told by a coordinator and by the workers' supervisor, on a socket like its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import psutil
import pytest
from support.waiting import until

from vrampool.health import FOLDER
from vrampool.local.embedded import EmbeddedValkey
from vrampool.processes import ServiceManager

SECRET = "a secret for tests only, 32 bytes"


class Manager:
    """The service manager's end of the socket."""

    def __init__(self) -> None:
        self.name = f"vrampool-test-{uuid.uuid4().hex}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.name)

    def hear(self, limit_s: float = 30.0) -> dict[str, str]:
        """Return the next message by its keys; an empty one when none comes in time."""
        self._socket.settimeout(limit_s)
        try:
            lines = self._socket.recv(4096).decode().splitlines()
        except TimeoutError:
            return {}
        return dict(line.partition("=")[::2] for line in lines)

    def hear_all(self) -> None:
        """Forget what has come."""
        while self.hear(0.01):
            pass

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    made = Manager()
    yield made
    made.close()


@pytest.fixture
def start(manager: Manager, valkey: str, pool_name: str, tmp_path) -> Iterator:
    """Start the command as a service, with the manager's socket in its environment."""
    started: list[subprocess.Popen[bytes]] = []
    env = {
        "NOTIFY_SOCKET": "@" + manager.name,
        "WATCHDOG_USEC": "60000000",
        "VRAMPOOL_REDIS": valkey,
        "VRAMPOOL_STORAGE": f"sqlite:///{tmp_path}/study.db",
        "VRAMPOOL_STATE_DIR": str(tmp_path),
        "VRAMPOOL_SECRET": SECRET,
        "VRAMPOOL_POOL": pool_name,
        "VRAMPOOL_SHARE": "1",
        "VRAMPOOL_BUDGET": "1GiB",
        "VRAMPOOL_PRELOAD": "",
    }

    def run(*arguments: str) -> subprocess.Popen[bytes]:
        log = (tmp_path / f"{arguments[0]}.log").open("wb")
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "vrampool", *arguments], env=os.environ | env, stdout=log, stderr=log
            )
        )
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_coordinator_says_that_it_is_ready_that_it_lives_and_that_it_ends(start, manager: Manager):
    process = start("coordinator")
    assert manager.hear() == {"READY": "1", "WATCHDOG": "1", "STATUS": "leading"}
    assert manager.hear() == {"WATCHDOG": "1", "STATUS": "leading"}, "READY once"
    process.terminate()
    until(lambda: "STOPPING" in manager.hear(), what="the word that it stops")
    assert process.wait(20) == 0


def test_of_two_coordinators_both_are_ready_and_one_leads(start, manager: Manager):
    start("coordinator")
    assert manager.hear()["STATUS"] == "leading"
    start("coordinator")
    heard: list[dict[str, str]] = []
    until(lambda: heard.append(manager.hear()) or any(item.get("READY") for item in heard), what="the second one")
    assert heard[-1]["STATUS"] == "standing by"


def test_a_coordinator_without_redis_lives_and_says_why_it_waits(start, manager: Manager, tmp_path):
    with EmbeddedValkey(tmp_path / "valkey") as server:
        start("coordinator", "--redis", server.url)
        assert manager.hear()["STATUS"] == "leading"
    until(lambda: manager.hear().get("STATUS", "").startswith("waiting: Redis does not answer"), what="waiting")


def test_a_supervisor_speaks_for_its_workers_and_falls_silent_when_one_hangs(start, manager: Manager, tmp_path):
    """A watchdog that only says that the supervisor lives would be worth nothing."""
    start("coordinator")
    until(lambda: manager.hear().get("STATUS") == "leading", what="a coordinator")
    supervisor = start("worker", "--gpu", "cpu")
    heard: list[dict[str, str]] = []
    until(
        lambda: heard.append(manager.hear()) or "is ready" in heard[-1].get("STATUS", ""), what="a worker", timeout_s=40
    )
    assert any(item.get("READY") and item["STATUS"].startswith(("starting", "worker")) for item in heard)
    (worker,) = (p for p in psutil.Process(supervisor.pid).children() if "vrampool_worker" in p.cmdline())
    worker.suspend()
    (sign,) = (path for path in (tmp_path / FOLDER).iterdir() if path.name.startswith("worker"))
    os.utime(sign, (time.time() - 60,) * 2)
    manager.hear_all()

    def silent() -> bool:
        """True when nothing but the coordinator's word came for four of the supervisor's turns."""
        ends_s = time.monotonic() + 2.0
        while (left_s := ends_s - time.monotonic()) > 0:
            if manager.hear(left_s).get("STATUS", "leading") != "leading":
                return False
        return True

    until(silent, what="silence")
    worker.resume()
    until(lambda: "is ready" in manager.hear().get("STATUS", ""), what="the worker's word again")
    supervisor.send_signal(signal.SIGTERM)
    until(lambda: "STOPPING" in manager.hear(), what="the word that it stops")
    assert supervisor.wait(40) == 0


def test_what_is_started_below_cannot_speak_for_the_service(manager: Manager):
    env = {"NOTIFY_SOCKET": "@" + manager.name, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "2", "PATH": "/bin"}
    systemd = ServiceManager(env)
    assert env == {"PATH": "/bin"}
    systemd.alive("a\nREADY=1")
    assert manager.hear() == {"READY": "1", "WATCHDOG": "1", "STATUS": "a READY=1"}, "one line"


def test_without_a_service_manager_nothing_happens():
    systemd = ServiceManager({})
    assert not systemd.listens
    systemd.alive("ready")
    systemd.stopping()
