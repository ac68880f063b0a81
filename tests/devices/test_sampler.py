"""Readings at intervals, and what happens when the device does not answer."""

from __future__ import annotations

import queue
import threading
import time

import pytest
from support.fake_nvml import GIB, GPU_IS_LOST, UNKNOWN

from vrampool.settings import Settings
from vrampool_worker.devices import Blind, DeviceReading, Sampler, find_devices

LIMIT_S = 10


class Heard:
    """What a sampler called back, in order."""

    def __init__(self) -> None:
        self._calls: queue.Queue[Blind | tuple] = queue.Queue()

    def reading(self, reading, measured):
        self._calls.put((reading, measured))

    def blind(self, blind):
        self._calls.put(blind)

    def next(self, kind):
        """Return the next call of a kind: Blind, or DeviceReading with what was measured."""
        while True:
            call = self._calls.get(timeout=LIMIT_S)
            if isinstance(call, kind):
                return call

    def count(self, kind):
        return sum(isinstance(call, kind) for call in list(self._calls.queue))


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def card(fake_nvml):
    return fake_nvml.add_card()


@pytest.fixture
def device(card):
    return find_devices(Settings(), {})[0]


@pytest.fixture
def start(device, heard, fake_nvml):
    samplers = []

    def run(interval_s=0.01, timeout_s=0.2, **more):
        sampler = Sampler(device, interval_s, timeout_s, heard.reading, heard.blind, **more)
        samplers.append(sampler)
        sampler.start()
        return sampler

    yield run
    fake_nvml.heal()
    for sampler in samplers:
        sampler.stop()


def test_it_reads_again_and_again(start, heard, fake_nvml):
    start()
    first, _ = heard.next(tuple)
    assert first.used_bytes == 0
    fake_nvml.set_used(0, GIB)
    while heard.next(tuple)[0].used_bytes != GIB:
        pass


def test_trials_are_measured_with_each_reading(start, heard, fake_nvml, keep):
    keeper, trial = keep(1)
    fake_nvml.add_process(0, trial, GIB)
    start(limits=lambda: {keeper: None})
    assert heard.next(tuple)[1] == {keeper: GIB}


def test_a_hanging_driver_is_told_once_and_stops_nobody(start, heard, fake_nvml):
    start(timeout_s=0.1)
    heard.next(tuple)
    fake_nvml.hang(0)
    blind = heard.next(Blind)
    assert "has not answered for 0.1 s" in blind.reason and not blind.lost
    fake_nvml.heal()
    heard.next(tuple)
    assert heard.count(Blind) == 0


def test_an_answer_that_came_too_late_is_thrown_away(start, heard, fake_nvml):
    """Nobody knows of which moment its figures are."""
    start(timeout_s=0.1)
    heard.next(tuple)
    fake_nvml.hang(0)
    heard.next(Blind)
    over_s = time.monotonic()
    fake_nvml.heal()
    assert heard.next(tuple)[0].at_s >= over_s


def test_a_card_that_errs_makes_blind_and_one_that_recovers_sees(start, heard, fake_nvml):
    start()
    heard.next(tuple)
    fake_nvml.fail(0, UNKNOWN, "memory")
    assert "Unknown Error" in heard.next(Blind).reason
    fake_nvml.heal()
    assert heard.next(tuple)[0].used_bytes == 0


def test_a_lost_card_is_said_to_be_lost(start, heard, fake_nvml):
    start()
    heard.next(tuple)
    fake_nvml.fail(0, GPU_IS_LOST)
    assert heard.next(Blind).lost


def test_a_fault_that_lasts_is_told_once(heard):
    silent = Silent()
    sampler = Sampler(silent, 0.001, LIMIT_S, heard.reading, heard.blind)
    sampler.start()
    assert silent.read_often.wait(LIMIT_S)
    sampler.stop()
    assert heard.count(Blind) == 1


class Silent:
    """A device that never tells anything."""

    id, label = "silent", "GPU silent"

    def __init__(self) -> None:
        self.readings = 0
        self.read_often = threading.Event()

    def read(self):
        self.readings += 1
        if self.readings == 10:
            self.read_often.set()
        return DeviceReading(at_s=0, total_bytes=1, fault="it does not say")


def test_a_new_reason_is_told_too(start, heard, fake_nvml):
    start()
    fake_nvml.fail(0, UNKNOWN, "memory")
    assert not heard.next(Blind).lost
    fake_nvml.fail(0, GPU_IS_LOST)
    assert heard.next(Blind).lost


def test_it_reads_at_once_when_asked(start, heard):
    sampler = start(interval_s=3600)
    heard.next(tuple)
    sampler.read_soon()
    heard.next(tuple)


def test_stopping_does_not_wait_for_a_driver_that_hangs(start, heard, fake_nvml):
    sampler = start(timeout_s=3600)
    heard.next(tuple)
    fake_nvml.hang(0)
    sampler.read_soon()
    started_s = time.monotonic()
    sampler.stop()
    assert time.monotonic() - started_s < 5


def test_nothing_is_called_after_a_stop(start, heard):
    sampler = start(interval_s=0.001)
    heard.next(tuple)
    sampler.stop()
    before = heard.count(tuple)
    assert not any(thread.name == "vrampool-sample" for thread in threading.enumerate())
    assert heard.count(tuple) == before


class Odd:
    """A device whose binding breaks in a way nobody thought of, every other time."""

    id, label = "odd", "GPU odd"

    def __init__(self) -> None:
        self.readings = 0

    def read(self):
        self.readings += 1
        if self.readings % 2:
            raise TypeError("a binding of another version")
        return DeviceReading(at_s=time.monotonic(), total_bytes=1, used_bytes=0)

    def measure(self, limits):
        return {}


def test_an_unforeseen_error_makes_blind_and_does_not_end_the_readings(heard):
    sampler = Sampler(Odd(), 0.001, LIMIT_S, heard.reading, heard.blind)
    sampler.start()
    assert "TypeError: a binding of another version" in heard.next(Blind).reason
    heard.next(tuple)
    heard.next(Blind)
    sampler.stop()


def test_an_error_of_a_callback_does_not_end_the_readings(device, heard):
    calls = []

    def callback(reading, measured):
        calls.append(reading)
        if len(calls) == 1:
            raise RuntimeError("a bug of the listener")
        heard.reading(reading, measured)

    sampler = Sampler(device, 0.001, LIMIT_S, callback, heard.blind)
    sampler.start()
    heard.next(tuple)
    sampler.stop()
