"""The private MPS daemon of a card: it starts, tells its clients, and ends with its worker, however that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import mps_control
from support.child_driver import alive, wait_for

from vrampool_worker.devices.mps import MpsDaemon, MpsError, find_program

HOLDER = Path(__file__).with_name("mps_holder.py")


def env_with(tmp_path: Path) -> dict[str, str]:
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    return {**os.environ, "PATH": f"{mps_control.install(tools)}:{os.environ['PATH']}"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[MpsDaemon]:
    env = env_with(tmp_path)
    program = find_program(env)
    assert program is not None
    made = MpsDaemon("GPU-1", program, env)
    yield made
    made.close()


def pids_of(daemon: MpsDaemon) -> list[int]:
    pipes = Path(daemon.client_env(None)["CUDA_MPS_PIPE_DIRECTORY"])
    return [int(word) for word in (pipes / "pid").read_text().split()]


def test_it_sees_its_card_alone_and_lies_at_a_short_path(daemon):
    daemon.start()
    daemon.await_start()
    pipes = Path(daemon.client_env(None)["CUDA_MPS_PIPE_DIRECTORY"])
    assert (pipes / "card").read_text() == "GPU-1"
    assert len(str(pipes)) < 40 and pipes.stat().st_mode & 0o077 == 0
    assert all(alive(pid) for pid in pids_of(daemon)) and daemon.running


def test_two_cards_have_a_daemon_each(daemon, tmp_path):
    env = env_with(tmp_path)
    other = MpsDaemon("GPU-2", find_program(env) or "", env)
    try:
        for one in (daemon, other):
            one.start()
            one.await_start()
        assert not set(pids_of(daemon)) & set(pids_of(other))
        assert daemon.client_env(None) != other.client_env(None)
    finally:
        other.close()


def test_a_client_is_held_to_its_lease_in_the_driver(daemon):
    variables = daemon.client_env(3 * 1024**3 + 5)
    assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3072M"
    assert set(variables) == {
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    }


def test_its_clients_are_read_back(daemon):
    daemon.start()
    daemon.await_start()
    assert daemon.clients() == set()
    mps_control.be_client(daemon.client_env(None))
    assert daemon.clients() == {os.getpid()}


def test_at_its_end_nothing_stays(daemon):
    daemon.start()
    daemon.await_start()
    pids, guard = pids_of(daemon), daemon.guard_pid
    folder = Path(daemon.client_env(None)["CUDA_MPS_PIPE_DIRECTORY"]).parent
    daemon.close()
    assert not any(alive(pid) for pid in [*pids, guard]) and not folder.exists()


def test_a_daemon_that_stopped_by_itself_is_seen(daemon):
    daemon.start()
    daemon.await_start()
    for pid in pids_of(daemon):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not daemon.running)
    with pytest.raises(MpsError, match="Cannot find MPS control daemon"):
        daemon.ask("get_server_list")


def test_what_a_killed_guard_leaves_behind_is_ended(daemon):
    daemon.start()
    daemon.await_start()
    pids = pids_of(daemon)
    os.kill(daemon.guard_pid, signal.SIGKILL)
    wait_for(lambda: not daemon.running)
    wait_for(daemon.sweep)
    assert not any(alive(pid) for pid in pids)


def test_when_the_worker_is_killed_daemon_server_and_guard_end(tmp_path):
    holder = subprocess.Popen([sys.executable, str(HOLDER)], stdout=subprocess.PIPE, text=True, env=env_with(tmp_path))
    assert holder.stdout is not None
    told = json.loads(holder.stdout.readline())
    assert all(alive(pid) for pid in told["pids"])
    holder.kill()
    holder.wait()
    wait_for(lambda: not any(alive(pid) for pid in told["pids"]))
    wait_for(lambda: not Path(told["folder"]).exists())


def test_a_daemon_that_does_not_start_says_why(tmp_path):
    env = env_with(tmp_path) | {"FAKE_MPS_FAILS": "1"}
    made = MpsDaemon("GPU-1", find_program(env) or "", env)
    made.start()
    with pytest.raises(MpsError, match="nvidia-cuda-mps-control -d failed"):
        made.await_start()
    made.close()


def test_a_long_temporary_path_is_refused(tmp_path):
    far = tmp_path / ("x" * 80)
    far.mkdir()
    with pytest.raises(MpsError, match="too long for MPS's sockets"):
        MpsDaemon("GPU-1", "program", {}, parent=far)
    assert list(far.iterdir()) == []
