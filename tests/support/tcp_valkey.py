"""A Valkey that listens on a port of the loopback, with users of its own: as on several machines."""

from __future__ import annotations

import contextlib
import ctypes
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.exceptions import RedisError
from support.waiting import until

from vrampool.local.embedded import server_binary

ADMIN = "an administrator of the tests"


class TcpValkey:
    """One server. The default user is off; `admin` is the tests' own way in.

    Args:
        folder: For its files.
        users: Lines of an ACL file.
    """

    def __init__(self, folder: Path, users: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        admin = f"user admin on >{ADMIN.replace(' ', '_')} ~* &* +@all\n"
        (folder / "users.acl").write_text("user default off\n" + admin + users)
        self.port = free_port()
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(folder), "--save", ""]
        with (folder / "valkey.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(server_binary()), *options, "--aclfile", str(folder / "users.acl")],
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,
            )
        self.admin = redis.Redis(port=self.port, username="admin", password=ADMIN.replace(" ", "_"))
        until(self._answers, what="an answer of Valkey")

    def _answers(self) -> bool:
        try:
            return bool(self.admin.ping())
        except RedisError:
            return False

    def url(self, user: str, password: str, host: str = "127.0.0.1") -> str:
        return f"redis://{user}:{password}@{host}:{self.port}/0"

    def client(self, user: str, password: str) -> redis.Redis:
        return redis.Redis(port=self.port, username=user, password=password)

    def close(self) -> None:
        self.admin.close()
        self._process.terminate()
        self._process.wait(10)


@contextmanager
def tcp_valkey(folder: Path, users: str = "") -> Iterator[TcpValkey]:
    """A server that ends with the block."""
    server = TcpValkey(folder, users)
    try:
        yield server
    finally:
        server.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Monitor:
    """What a server was sent, as MONITOR tells it: by whom, and what. Scripts' commands count as their caller's."""

    def __init__(self, server: TcpValkey) -> None:
        self._server = server
        self._users: dict[str, str] = {}
        self.lines: list[tuple[str, str]] = []  #: (client's address or "lua", command and arguments, each in quotes)
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.sendall(f"AUTH admin {ADMIN.replace(' ', '_')}\r\nMONITOR\r\n".encode())
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                found = _LINE.match(line)
                if found:
                    self._take(found["who"], found["what"])

    def _take(self, address: str, command: str) -> None:
        self.lines.append((address, command))
        if address != "lua" and address not in self._users:
            for client in self._server.admin.client_list():
                self._users[client["addr"]] = client["user"]
            self._users.setdefault(address, "")

    def close(self) -> None:
        self._server.admin.echo("the end")  # whatever was sent before is told before
        until(lambda: any("the end" in command for _, command in list(self.lines)), what="the monitor's end")
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)

    def by_user(self) -> dict[str, set[str]]:
        """Return the names of the commands that each user has sent, in small letters, with those of its scripts.

        Of a command with subcommands the two words are joined by "|", as in ACLs.
        """
        found: dict[str, set[str]] = {}
        last = ""
        for address, text in self.lines:
            words = [word.lower() for word in _WORD.findall(text)[:2]]
            if address != "lua":
                last = self._users.get(address, "")
            name = "|".join(words) if words[0] in _WITH_SUBCOMMANDS else words[0]
            found.setdefault(last, set()).add(name)
        return found


_LINE = re.compile(r"\+\S+ \[\d+ (?P<who>[^\]]+)\] (?P<what>.*)")
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
_WITH_SUBCOMMANDS = {"client", "config", "acl", "command", "script", "xinfo", "object", "pubsub", "memory", "latency"}


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
