"""Attach to the local pool, or start one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from vrampool import errors
from vrampool.errors import AlreadyRunningError, VrampoolError
from vrampool.local.embedded import EmbeddedValkey
from vrampool.local.state import PoolRecord, StateDir
from vrampool.processes import is_alive
from vrampool.settings import Settings

START_TIMEOUT_S = 60.0


@dataclass
class LocalPool:
    """A local pool as its users see it."""

    settings: Settings  #: with `redis` and `storage` filled in
    record: PoolRecord
    process: subprocess.Popen[bytes] | None = None  #: set when this process owns the pool
    started: bool = False  #: by this process; else it ran already, with settings of its own

    def failure(self) -> VrampoolError | None:
        """Return why the pool ended by itself, or None while it runs."""
        found = StateDir(self.settings).failure()  # written before the host begins to end the rest
        if found is None:
            ended = not is_alive(self.record.pid, self.record.start_time)
            if not ended and (self.process is None or self.process.poll() is None):
                return None
            words = f"the local pool has ended; see {StateDir(self.settings).logs}"
            if self.process is None and self.record.owned:
                words += (
                    ". It ends with the command or block that started it. The study is kept, and submitted again under "
                    "its name goes on; `vrampool up` starts a pool that stays"
                )
            return VrampoolError(words)
        text, code = found
        kinds = {2: errors.InputError, 3: errors.DeviceLostError}
        return kinds.get(code, VrampoolError)(text)

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the pool and wait for it. True when every process of it is gone."""
        limit_s = timeout_s if timeout_s is not None else self.settings.grace_s + 60
        if self.process is not None:
            if self.process.stdin is not None:
                self.process.stdin.close()
            try:
                self.process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                return False
            return True
        return stop_record(self.record, limit_s)


def stop_record(record: PoolRecord, timeout_s: float) -> bool:
    """Ask a pool's host process to end and wait for it. True when it is gone."""
    if not is_alive(record.pid, record.start_time):
        return True
    try:
        pidfd = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return True
    try:
        if is_alive(record.pid, record.start_time):
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        ready, _, _ = select.select([pidfd], [], [], timeout_s)
        return bool(ready)
    except ProcessLookupError:
        return True
    finally:
        os.close(pidfd)


def attach(settings: Settings) -> LocalPool | None:
    """Return the pool that runs in the state directory, or None."""
    record = StateDir(settings).read()
    return None if record is None else LocalPool(_filled(settings, record), record)


def attach_or_start(settings: Settings, *, owned: bool, meanwhile: Callable[[], object] | None = None) -> LocalPool:
    """Return the pool that runs in the state directory; start one when there is none.

    Args:
        settings: Settings for a pool that is started. One that runs already keeps its own.
        owned: A started pool ends with this process; else it stays until it is idle for long.
        meanwhile: Called while a pool starts, before that is waited for.

    Raises:
        VrampoolError: it did not start; the text says why.
    """
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        found = attach(settings)
        if found is not None:
            return found
        try:
            return _start(settings, owned, meanwhile)
        except AlreadyRunningError:  # somebody else starts one at this moment, or one is about to end
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


def _start(settings: Settings, owned: bool, meanwhile: Callable[[], object] | None) -> LocalPool:
    state = StateDir(settings)
    state.make()
    state.logs.mkdir(exist_ok=True)
    env = dict(os.environ) | settings.to_env() | {"VRAMPOOL_READY": "stdout"}
    if settings.secret is not None:
        env["VRAMPOOL_SECRET"] = settings.secret
    with (state.logs / "host.log").open("ab") as log:
        # Its own session: Ctrl-C in a terminal or an interrupted notebook cell is not for the pool.
        process = subprocess.Popen(
            [sys.executable, "-m", "vrampool.local.host", *(["--owned"] if owned else [])],
            env=env,
            stdin=subprocess.PIPE if owned else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    if meanwhile is not None:
        meanwhile()
    _wait_ready(process, state)
    record = state.read()
    if record is None:
        raise VrampoolError(f"the local pool ended while it started; see {state.logs / 'host.log'}")
    return LocalPool(_filled(settings, record), record, process if owned else None, started=True)


def _wait_ready(process: subprocess.Popen[bytes], state: StateDir) -> None:
    assert process.stdout is not None
    deadline = time.monotonic() + START_TIMEOUT_S
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(process.stdout.fileno(), 65536) if ready else b""
        if not part:
            break
        line += part
    process.stdout.close()
    try:
        message = json.loads(line)
    except ValueError:
        raise VrampoolError(_unready(process, state)) from None
    if not message.get("ok"):
        process.wait(10)
        kind = getattr(errors, str(message.get("kind")), VrampoolError)
        raise kind(str(message.get("error")))


def _unready(process: subprocess.Popen[bytes], state: StateDir) -> str:
    """End a host that did not say how its start went, and say what is known of it."""
    try:
        code = process.wait(1.0)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        how = f"was not ready within {START_TIMEOUT_S:.0f} s"
    return f"the local pool did not start: its host process {how}; see {state.logs / 'host.log'}"


def _filled(settings: Settings, record: PoolRecord) -> Settings:
    return settings.with_changes(redis=record.redis, storage=record.storage)


def filled_ahead(settings: Settings) -> Settings:
    """Return what the settings of a pool will be that starts in its state directory, with what belongs to it."""
    state = StateDir(settings)
    return settings.with_changes(redis=EmbeddedValkey(state.valkey).url, storage=state.database_url)
