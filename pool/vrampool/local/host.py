"""The host process of a local pool: `python -m vrampool.local.host`.

It starts the embedded Valkey, a coordinator and the supervisor of the workers, starts again whichever dies, and ends
all of them in order: workers first (they hand back what runs), then the coordinator, then Valkey.

Coordinator, supervisor and worker import much the same, for a second each. So this process imports it, once, while
Valkey starts, and forks them; what is started again later is a fresh interpreter.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from vrampool.errors import AlreadyRunningError, DeviceLostError, InputError, VrampoolError
from vrampool.forking import Process, can_fork, fork
from vrampool.local import ahead
from vrampool.local.embedded import EmbeddedValkey
from vrampool.local.state import PoolRecord, StateDir, no_room
from vrampool.processes import EMBEDDED, RESTARTED, KeptProcess, keep_secrets, process_start_time
from vrampool.settings import Settings, load_settings
from vrampool.signing import load_secret

_log = logging.getLogger("vrampool.local")

#: The supervisor of the workers, by name: the control plane does not import the data plane.
SUPERVISOR_MODULE = "vrampool_worker.supervisor"
#: The supervisor writes a line there when its devices are found and free: the bytes of the largest budget.
READY_FD = "VRAMPOOL_READY_FD"
READY_LIMIT_S = 45.0  # whoever starts a pool waits for longer, and so hears why nothing came
#: A supervisor that is killed before it was ready is started again, so often in all.
_MOST_STARTS = 3
TEND_S = 0.5


class Host:
    """Runs the processes of one local pool until it is asked to stop.

    Args:
        settings: Settings of the pool; `redis` None means the embedded Valkey.
        owned: End when standard input closes: the owner holds its other end.
    """

    def __init__(self, settings: Settings, *, owned: bool) -> None:
        self._settings = settings
        self._owned = owned
        self._state = StateDir(settings)
        self._valkey: EmbeddedValkey | None = None
        self._coordinator: KeptProcess | None = None
        self._workers: KeptProcess | None = None
        self._env: dict[str, str] = {}  #: of coordinator and supervisor
        self._log_starts: dict[Path, int] = {}  #: where in a log, which is gone on with, this pool begins
        self._stop = False
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> int:
        """Start, tell the starter that we are ready, tend, stop. Returns the exit code."""
        self._state.make()
        with self._lock():
            self._state.clear_failure()
            load_secret(self._settings, create=True)
            self._signals()
            code = 0
            try:
                self._start()
                _tell_ready({"ok": True})
                code = self._tend()
            finally:
                self._shut_down()
        return code

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        fd = os.open(self._state.lock_file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise AlreadyRunningError(
                f"a pool runs already in {self._state.path}: use it, or end it with `vrampool down`"
            ) from None
        try:
            yield
        finally:
            os.close(fd)

    def _signals(self) -> None:
        def ask(_signum: int, _frame: object) -> None:
            self._stop = True
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_w, b"s")

        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, ask)

    def _start(self) -> None:
        settings = self._settings
        if settings.redis is None:
            self._valkey = EmbeddedValkey(self._state.valkey)
            self._valkey.begin()
            settings = settings.with_changes(redis=self._valkey.url)
        if settings.storage is None:
            settings = settings.with_changes(storage=self._state.database_url)
        self._env = {name: value for name, value in os.environ.items() if name != "VRAMPOOL_SECRET"}
        self._env |= settings.to_env()
        if settings.secret is not None:
            self._env["VRAMPOOL_SECRET"] = settings.secret
        if self._valkey is not None:
            self._env[EMBEDDED] = "1"
        self._state.logs.mkdir(parents=True, exist_ok=True)
        for log in (self._coordinator_log, self._worker_log):
            log.touch()  # while a database is created, the file system makes new files wait for that
            self._log_starts[log] = log.stat().st_size
        idle = ["--exit-when-idle"] if not self._owned and settings.idle_exit_s else []
        coordinate = ["coordinator", *idle]
        command = [sys.executable, "-m", "vrampool", *coordinate]
        self._coordinator = KeptProcess(
            "coordinator",
            command,
            env=self._env,
            fork=forked(ahead.COORDINATOR, lambda: _call("vrampool.cli", coordinate), command),
            log=self._coordinator_log,
        )
        self._coordinator.start()
        ready_r = self._start_workers()
        if self._valkey is not None:
            self._valkey.await_answer()  # the others wait for it, too
        largest_bytes = self._await_workers(ready_r)
        start_time = process_start_time(os.getpid()) or 0
        assert settings.redis is not None and settings.storage is not None
        self._state.write(
            PoolRecord(
                pid=os.getpid(),
                start_time=start_time,
                redis=settings.redis,
                storage=settings.storage,
                owned=self._owned,
                gpu=settings.gpu,
                largest_budget_bytes=largest_bytes,
            )
        )

    @property
    def _coordinator_log(self) -> Path:
        return self._state.logs / "coordinator.log"

    @property
    def _worker_log(self) -> Path:
        return self._state.logs / "worker.log"

    def _start_workers(self) -> int:
        """Start the supervisor; return the descriptor on which it says that it is ready."""
        ready_r, ready_w = os.pipe2(os.O_CLOEXEC)
        command = [sys.executable, "-m", SUPERVISOR_MODULE]
        self._workers = KeptProcess(
            "worker supervisor",
            command,
            env=self._env,
            fork=forked(ahead.SUPERVISOR, lambda: _call(SUPERVISOR_MODULE), command, keep=(ready_w,)),
            first_env={READY_FD: str(ready_w)} | ({RESTARTED: "0"} if self._state.was_killed() else {}),
            log=self._worker_log,
            pass_fds=(ready_w,),
        )
        try:
            self._workers.start()
        finally:
            os.close(ready_w)
        return ready_r

    def _await_workers(self, ready_r: int) -> int:
        """Wait until the supervisor has found and checked the devices: a wrong `--gpu` is told before anything starts.

        Returns:
            The largest budget of its devices, in bytes.

        Raises:
            VrampoolError: it ended instead; with its own words.
        """
        for starts in range(1, _MOST_STARTS + 1):
            assert self._workers is not None
            if (largest_bytes := _read_ready(ready_r)) is not None:
                return largest_bytes
            in_time = self._workers.wait(5)
            code = self._workers.exit_code or 1
            if code > 0 or not in_time or starts == _MOST_STARTS or self._stop:
                break
            # Nobody asked it to end: what killed it may be over, as for one that is killed later.
            _log.warning("the worker supervisor was killed by signal %d at its start; it is started again", -code)
            ready_r = self._start_workers()
        text = self._error_in(self._worker_log)
        if text is None and not in_time:
            text = f"the devices were not found within {READY_LIMIT_S:.0f} s; see {self._worker_log}"
        elif text is None:
            how = f"was killed by signal {-code}, {starts} times" if code < 0 else f"ended with code {code}"
            text = f"no worker started: the worker supervisor {how}; see {self._worker_log}"
        kinds = {2: InputError, 3: DeviceLostError}
        raise kinds.get(code, VrampoolError)(text)

    def _error_in(self, log: Path) -> str | None:
        return last_error_line(log, self._log_starts.get(log, 0))

    def _tend(self) -> int:
        watched = [self._wake_r] + ([sys.stdin.fileno()] if self._owned else [])
        assert self._coordinator is not None and self._workers is not None
        while not self._stop:
            ready, _, _ = select.select(watched, [], [], TEND_S)
            if self._owned and sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 4096):
                _log.info("the owner of the pool is gone")
                break
            for kept in (self._coordinator, self._workers):
                kept.tend()
            if self._valkey is not None:
                self._valkey.tend()
            if self._coordinator.given_up and self._coordinator.exit_code == 0:
                _log.info("idle for long: the pool ends")
                break
            for kept in (self._coordinator, self._workers):
                if kept.given_up and kept.exit_code not in (0, None):
                    return self._give_up(kept)
        return 0

    def _give_up(self, kept: KeptProcess) -> int:
        """Note why nothing works, for whoever waits, and end the pool."""
        file = self._worker_log if kept is self._workers else self._coordinator_log
        text = self._error_in(file) or f"the {kept.name} ended with code {kept.exit_code}; see {file}"
        self._state.write_failure(text, kept.exit_code or 1)
        _log.error("%s", text)
        return kept.exit_code or 1

    def _shut_down(self) -> None:
        self._state.clear()
        if self._workers is not None:
            self._workers.ask_stop()
            self._workers.wait(self._settings.grace_s + 30)
        if self._coordinator is not None:
            self._coordinator.ask_stop()
            self._coordinator.wait(10)
        if self._valkey is not None:
            self._valkey.stop()


def forked(
    imports: Sequence[str], run: Callable[[], int | None], command: Sequence[str], keep: Sequence[int] = ()
) -> Callable[[Mapping[str, str], int | None], Process | None]:
    """Return what forks a process that stands in for a command, with all its imports done; it returns None if it can't.

    Args:
        imports: Modules.
        run: What the process does.
        command: What it stands in for.
        keep: Descriptors that it keeps.
    """

    def start(env: Mapping[str, str], output: int | None) -> Process | None:
        try:
            ahead.import_ahead(imports)
        except Exception as error:  # the command meets it as well, and says so in its own log
            _log.warning("%s is not forked: %s", " ".join(command[1:]), error)
            return None
        return fork(run, command, env=env, output=output, keep=keep) if can_fork() else None

    return start


def _call(module: str, *arguments: object) -> int | None:
    code: int | None = importlib.import_module(module).main(*arguments)
    return code


def last_error_line(file: Path, start: int = 0) -> str | None:
    """Return the newest line of a log that was written as an error for people.

    Args:
        file: The log.
        start: Where in it to begin: what stands before is of an earlier pool.
    """
    with contextlib.suppress(OSError), file.open("rb") as log:
        log.seek(start)
        for line in reversed(log.read().decode(errors="replace").splitlines()[-50:]):
            if line.startswith("error: "):
                return line.removeprefix("error: ")
    return None


def _read_ready(ready_r: int) -> int | None:
    """Wait for the supervisor's line: the largest budget of its devices. None: it ended, or says nothing."""
    try:
        ready, _, _ = select.select([ready_r], [], [], READY_LIMIT_S)
        line = os.read(ready_r, 64) if ready else b""
        return int(line) if line else None
    finally:
        os.close(ready_r)


def _tell_ready(message: dict[str, object]) -> None:
    """Write one JSON line for the process that started us, then let go of its pipe."""
    if os.environ.get("VRAMPOOL_READY") != "stdout":
        return
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def main() -> int:
    """Run the host with the settings of the environment; ``--owned`` ends it with standard input."""
    keep_secrets()
    owned = "--owned" in sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = None
    try:
        settings = load_settings()
        return Host(settings, owned=owned).run()
    except VrampoolError as error:
        return _tell_error(error)
    except OSError as error:
        full = no_room(error, settings.state_dir) if settings is not None else None
        if full is not None:  # the disk was filled meanwhile, and no log says so
            return _tell_error(full)
        _tell_error(VrampoolError(f"the local pool did not start: {error}"))
        raise


def _tell_error(error: VrampoolError) -> int:
    """Tell whoever started us, and the log; return the exit code."""
    _tell_ready({"ok": False, "error": str(error), "exit_code": error.exit_code, "kind": type(error).__name__})
    with contextlib.suppress(OSError):
        print(f"error: {error}", file=sys.stderr, flush=True)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
