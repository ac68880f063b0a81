"""Readings of a device at intervals, each with a deadline: a driver that hangs stops admission, not the worker."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vrampool.errors import DeviceLostError
from vrampool_worker.devices.base import Device, DeviceReading

_log = logging.getLogger(__name__)
Measured = Mapping[int, int | None]


@dataclass(frozen=True)
class Blind:
    """The device cannot be read now."""

    reason: str  #: for people
    lost: bool  #: the driver no longer has the device; otherwise it may come back


class Sampler:
    """Reads one device for ever, in threads of its own.

    Two threads: one asks the device and may hang in the driver, the other waits for it with a deadline and calls back.
    While the first hangs nothing else is asked. What it brings back after its deadline is thrown away: it is of no
    certain age. Callbacks run in the sampler's thread, so they only hand on; their errors are logged.

    Args:
        device: The device; only the sampler calls its `read` and `measure`.
        interval_s: Pause between two readings while nothing runs.
        busy_interval_s: Pause while there are trials to measure.
        timeout_s: Deadline of one reading.
        on_reading: Called with each reading, and what was measured of the trials in `limits` (by keeper's pid).
        on_blind: Called once when readings fail, and again when the reason changes.
        limits: Returns the trials to measure, as `Device.measure` takes them; called in the sampler's threads.
    """

    def __init__(
        self,
        device: Device,
        interval_s: float,
        timeout_s: float,
        on_reading: Callable[[DeviceReading, Measured], None],
        on_blind: Callable[[Blind], None],
        *,
        limits: Callable[[], Mapping[int, int | None]] = dict,
        busy_interval_s: float | None = None,
    ) -> None:
        self._device = device
        self._interval_s = interval_s
        self._busy_interval_s = interval_s if busy_interval_s is None else busy_interval_s
        self._timeout_s = timeout_s
        self._on_reading = on_reading
        self._on_blind = on_blind
        self._limits = limits
        self._asks: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[DeviceReading, Measured] | Blind | None] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._told: Blind | None = None
        self._threads = [
            threading.Thread(target=self._read_for_ever, name="vrampool-read", daemon=True),
            threading.Thread(target=self._watch, name="vrampool-sample", daemon=True),
        ]

    def start(self) -> None:
        """Start reading; the first reading is asked for at once."""
        for thread in self._threads:
            thread.start()

    def read_soon(self) -> None:
        """Read now instead of at the end of the interval: a trial has ended and its memory is awaited."""
        self._wake.set()

    def stop(self) -> None:
        """Stop calling back, and return at once; a thread that hangs in the driver is left behind."""
        self._stopped.set()
        self._wake.set()
        self._answers.put(None)
        self._asks.put(False)
        if threading.current_thread() is not self._threads[1] and self._threads[1].ident is not None:
            self._threads[1].join(timeout=1.0)

    def _read_for_ever(self) -> None:
        while self._asks.get() and not self._stopped.is_set():
            self._answers.put(self._read())

    def _read(self) -> tuple[DeviceReading, Measured] | Blind:
        try:
            reading = self._device.read()
            if reading.fault:
                return Blind(reading.fault, lost=False)
            return reading, self._device.measure(self._limits())
        except DeviceLostError as error:
            return Blind(str(error), lost=True)
        except Exception as error:  # whatever goes wrong in a driver's binding: the worker goes on without readings
            _log.exception("reading %s failed", self._device.id)
            return Blind(f"reading {self._device.label} failed: {type(error).__name__}: {error}", lost=False)

    def _watch(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            self._asks.put(True)
            answer = self._await_answer()
            if answer is not None and not self._stopped.is_set():
                self._tell(answer)
                self._wake.wait(self._busy_interval_s if self._limits() else self._interval_s)

    def _await_answer(self) -> tuple[DeviceReading, Measured] | Blind | None:
        """Return the answer, or None when it came too late or the sampler stops."""
        asked_s = time.monotonic()
        try:
            return self._answers.get(timeout=self._timeout_s)
        except queue.Empty:
            pass
        self._tell(Blind(f"{self._device.label} has not answered for {self._timeout_s:g} s", lost=False))
        self._answers.get()
        _log.warning("%s answered after %.1f s", self._device.label, time.monotonic() - asked_s)
        return None

    def _tell(self, answer: tuple[DeviceReading, Measured] | Blind) -> None:
        try:
            if not isinstance(answer, Blind):
                self._told = None
                self._on_reading(*answer)
            elif answer != self._told:
                self._told = answer
                self._on_blind(answer)
        except Exception:  # a callback's error must not end the readings
            _log.exception("a callback of the sampler failed")
