"""Who holds what a trial left: named as far as the driver and the kernel tell, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.waiting import until

from vrampool.units import GIB
from vrampool_worker.devices import DeviceReading
from vrampool_worker.release_watch import CardProcesses, ReleaseWatch, holder, words_of_age

SLEEP = "import time; time.sleep(600)"


def reading(at_s: float, processes: dict[int, int | None], *, foreign: bool = False) -> DeviceReading:
    return DeviceReading(at_s=at_s, total_bytes=24 * GIB, process_bytes=processes, foreign_pids=foreign)


@pytest.fixture
def process():
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as started:
        yield started
        started.kill()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (172800, "2 days"),
        (1e6, "12 days"),
    ],
)
def test_an_age_is_said_in_its_largest_unit(seconds, words):
    assert words_of_age(seconds) == words


def test_a_living_process_is_named_by_command_and_age(process):
    text = str(until(lambda: found if SLEEP in str(found := holder(process.pid, 3 * GIB)) else None))
    assert text.startswith(f"pid {process.pid} ({sys.executable} -c {SLEEP}, started ") and text.endswith(
        "holds 3.0 GiB"
    )
    assert 0 <= holder(process.pid, 1).age_s < 60


def test_one_that_is_gone_is_said_to_be(process):
    process.kill()
    process.wait()
    assert str(holder(process.pid, None)) == (
        f"pid {process.pid} holds an unknown amount; the process is gone, only the driver still lists it"
    )


def test_a_number_of_another_namespace_gets_no_name_of_ours():
    """In a container the driver's 4711 is not our 4711."""
    assert str(holder(os.getpid(), GIB, foreign=True)) == f"pid {os.getpid()} of the host holds 1.0 GiB"


def test_a_long_command_is_cut():
    found = holder(os.getpid(), GIB)
    assert len(found.command) <= 80


def test_only_who_came_with_the_trial_is_named_and_none_below_a_keeper(process):
    """Strangers were there before; other trials are our own."""
    processes = CardProcesses()
    processes.note(reading(10.0, {1: GIB}))
    processes.note(reading(20.0, {1: GIB, process.pid: 2 * GIB, 999_999: 3 * GIB}))
    last = reading(30.0, {1: GIB, process.pid: 2 * GIB, 999_999: 3 * GIB})
    processes.note(last)
    assert [item.pid for item in processes.came_since(15.0, last, [])] == [999_999, process.pid], "largest first"
    assert [item.pid for item in processes.came_since(15.0, last, [os.getpid()])] == [999_999]
    assert processes.came_since(25.0, last, []) == []


def test_one_that_left_and_came_again_came_anew():
    processes = CardProcesses()
    for at_s, listed in ((10.0, {7: GIB}), (20.0, {}), (30.0, {7: GIB})):
        processes.note(reading(at_s, listed))
    assert [item.pid for item in processes.came_since(15.0, reading(30.0, {7: GIB}), [])] == [7]


class Loop(SimpleNamespace):
    """As much of a worker's loop as is looked at."""

    def __init__(self, *children: SimpleNamespace) -> None:
        self.quarantined: list[str] = []
        ledger = SimpleNamespace(quarantine=lambda reason, now_s: self.quarantined.append(reason), left_bytes=0)
        runner = SimpleNamespace(children=set(children), label_of=lambda child: "digits/3")
        super().__init__(ledger=ledger, runner=runner, settings=SimpleNamespace(give_back_s=30.0))


class Stuck(SimpleNamespace):
    keeper_pid = 17
    __hash__ = object.__hash__


@pytest.mark.parametrize(("ending_since_s", "quarantined"), [(None, False), (71.0, False), (69.0, True)])
def test_a_device_is_quarantined_for_a_process_that_was_killed_long_ago(monkeypatch, ending_since_s, quarantined):
    """Whoever had it killed, and also when only what it had started is left."""
    monkeypatch.setattr("vrampool_worker.release_watch.time.monotonic", lambda: 100.0)
    loop = Loop(Stuck(ending_since_s=ending_since_s))
    watch = ReleaseWatch(loop)
    watch.look()
    watch.look()
    expected = ["the process of digits/3 cannot be killed: it keeps its memory until it is gone"] if quarantined else []
    assert loop.quarantined == expected, "once"
