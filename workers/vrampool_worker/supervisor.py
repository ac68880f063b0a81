"""One worker process per device, started again when it dies: `vrampool worker`, or this module with `-m`."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vrampool.errors import DeviceConflictError, VrampoolError
from vrampool.forking import Prepared, Process, can_fork, was_forked
from vrampool.health import Verdict, look
from vrampool.processes import RESTARTED, KeptProcess, ServiceManager, end_with_keeper, is_alive, keep_secrets
from vrampool.settings import Settings, load_settings, make_state_dir
from vrampool.units import parse_budget
from vrampool_worker import serving
from vrampool_worker.devices import Device, device_lock, find_devices

_log = logging.getLogger("vrampool.worker")
TEND_S = 0.5
#: After its grace a worker that drains needs so long at most, unless something hangs.
PATIENCE_S = 10.0
WORKER_MODULE = "vrampool_worker"
_COMMAND = [sys.executable, "-m", WORKER_MODULE]
_MOST_PREPARED = 16
#: Names a descriptor on which whoever started us waits for a line: devices found and free, bytes of the largest budget.
READY_FD = "VRAMPOOL_READY_FD"


class Supervisor:
    """Keeps a worker process for each device.

    Args:
        settings: `gpu` says which devices.
        devices: The devices, found already.
        prepared: Processes that can be workers at once; they are used or dropped.
    """

    def __init__(self, settings: Settings, devices: Sequence[Device], prepared: Sequence[Prepared] = ()) -> None:
        self._settings = settings
        self._stop_signals = 0
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._systemd = ServiceManager()
        env = dict(os.environ)
        self._workers = [
            KeptProcess(
                f"worker of {device.id}",
                _COMMAND,
                env=env | settings.with_changes(gpu=device.id).to_env(),
                fork=_begin(waiting),
            )
            for device, waiting in itertools.zip_longest(devices, prepared[: len(devices)])
        ]
        for waiting in prepared[len(devices) :]:
            waiting.drop()

    def run(self) -> int:
        """Keep them running until a signal. Returns the exit code: that of a worker which cannot go on, else 0."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)
        for worker in self._workers:
            worker.start()
        while not self._stop_signals and not all(worker.given_up for worker in self._workers):
            select.select([self._wake_r], [], [], TEND_S)
            for worker in self._workers:
                worker.tend()
            if self._systemd.listens:
                self._tell_systemd()
        self._systemd.stopping()
        return self._shut_down()

    def _tell_systemd(self) -> None:
        """Pass on that the workers live; systemd restarts all of it when one hangs."""
        pids = {worker.pid for worker in self._workers}
        signs: list[Verdict] = [verdict for verdict in look(self._settings.state_dir) if verdict.sign.pid in pids]
        if all(verdict.alive for verdict in signs):
            self._systemd.alive("; ".join(verdict.text for verdict in signs) or "starting")

    def _shut_down(self) -> int:
        asked = 0
        deadline_s = self._settings.grace_s + self._settings.stop_ask_s + 20
        waited_s = 0.0
        while any(worker.running for worker in self._workers) and waited_s < deadline_s:
            while asked < max(1, min(self._stop_signals, 2)):
                asked += 1
                for worker in self._workers:
                    worker.ask_stop()  # a second time hurries them
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_r, 64)
            select.select([self._wake_r], [], [], 0.1)
            waited_s += 0.1
        for worker in self._workers:
            worker.wait(5)
        codes = [worker.exit_code for worker in self._workers if worker.exit_code]
        return codes[0] if codes and not self._stop_signals else 0

    def _on_signal(self, _signum: int, _frame: object) -> None:
        self._stop_signals += 1
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_w, b"s")


def _begin(waiting: Prepared | None) -> Callable[[Mapping[str, str], int | None], Process | None] | None:
    return None if waiting is None else lambda env, _output: waiting.begin(env)


def main() -> int:
    """Supervise with the settings of the environment."""
    keep_secrets()
    end_with_keeper()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = load_settings()
        return supervise(settings)
    except VrampoolError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def supervise(settings: Settings) -> int:
    """Find the devices and keep a worker on each; checks everything that can be checked before the first start."""
    make_state_dir(settings.state_dir)
    prepared = prepare_workers(settings) if was_forked() and can_fork() and RESTARTED not in os.environ else []
    devices = find_devices(settings, os.environ)
    budgets = [parse_budget(settings.budget, device.total_bytes) for device in devices]
    if RESTARTED in os.environ:
        _tell_ready(max(budgets))  # they were free once, and will be: nobody waits for that
        await_free(devices, settings)
    else:
        check_free(devices, settings)
        _tell_ready(max(budgets))
    return Supervisor(settings, devices, prepared).run()


def prepare_workers(settings: Settings) -> list[Prepared]:
    """Fork a process for each worker there will be, before this one has asked the driver anything: CUDA and NVML do not
    survive a fork.

    How many devices there are is not known yet. What is too much is dropped, and what is missing starts as a command.
    """
    names = [name.strip() for name in settings.gpu.split(",")]
    cards = [path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
    count = len(cards) if names == ["all"] else len(names)
    return [Prepared(serving.main, _COMMAND, serving.import_ahead) for _ in range(max(1, min(count, _MOST_PREPARED)))]


def _tell_ready(largest_bytes: int) -> None:
    if READY_FD in os.environ:
        fd = int(os.environ.pop(READY_FD))
        os.write(fd, b"%d\n" % largest_bytes)
        os.close(fd)


def check_free(devices: Sequence[Device], settings: Settings) -> None:
    """See that no other worker holds any of the devices.

    Raises:
        DeviceConflictError: one is held.
    """
    for device in devices:
        with device_lock(device.id, settings.share):
            pass


def await_free(devices: Sequence[Device], settings: Settings) -> None:
    """Wait for the devices where an earlier supervisor of the pool was killed: its workers drain before they end.

    Raises:
        DeviceConflictError: one is held for longer than draining takes, and by no worker of this pool.
    """
    deadline_s = time.monotonic() + settings.grace_s + settings.stop_ask_s + PATIENCE_S
    told = False
    while True:
        try:
            return check_free(devices, settings)
        except DeviceConflictError as error:
            if time.monotonic() >= deadline_s and not _own_worker_lives(settings):
                raise
            if not told:
                _log.warning("waiting for a worker of before: %s", error)
            told = True
        time.sleep(0.2)


def _own_worker_lives(settings: Settings) -> bool:
    """True while a worker that keeps its sign of life in our state directory is there, however it is."""
    signs = [verdict.sign for verdict in look(settings.state_dir)]
    return any(sign.role == "worker" and is_alive(sign.pid, sign.start_time) for sign in signs)


if __name__ == "__main__":
    sys.exit(main())
