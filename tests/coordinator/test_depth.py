"""When one more trial is asked for."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from vrampool.coordinator.depth import Outlook, Room, Rooms, fits, rooms_of
from vrampool.coordinator.filling import _beside_exclusive
from vrampool.queueing import WorkerRecord
from vrampool.units import GIB

BUSY = Room("GPU-1", 10 * GIB, idle=False, slots=3)
IDLE = Room("GPU-2", 20 * GIB, idle=True, slots=4)
FULL = Room("GPU-3", GIB // 2, idle=False, slots=3)
ALONE = None


@pytest.mark.parametrize(
    ("rooms", "waiting", "smallest", "wanted"),
    [
        ([BUSY], [], GIB, True),
        ([FULL], [], GIB, False),
        ([], [], GIB, False),
        ([BUSY], [GIB], GIB, False),  # the one that waits will take it
        ([BUSY], [16 * GIB], GIB, True),
        ([BUSY], [16 * GIB, 16 * GIB], GIB, False),
        ([BUSY], [], ALONE, False),
        ([IDLE], [], ALONE, True),
        ([IDLE], [ALONE], GIB, False),
        ([BUSY, IDLE], [ALONE], GIB, True),
    ],
)
def test_one_is_asked_for_while_a_device_could_start_it(rooms, waiting, smallest, wanted):
    assert Outlook(rooms, waiting).wants(smallest) is wanted


def test_those_that_need_a_device_of_their_own_gather_while_others_run():
    """One drain serves them all; but not so many that the sampler knows nothing of what it asked for long ago."""
    assert Outlook([BUSY], [ALONE, ALONE]).wants(GIB)
    assert Outlook([BUSY], [ALONE, ALONE, 16 * GIB]).wants(GIB)
    assert not Outlook([BUSY], [ALONE, ALONE, ALONE]).wants(GIB)


def test_where_others_are_asked_for_meanwhile_more_of_them_gather():
    """As long as there are any others no device is drained for want of work; of those the sampler hears."""
    assert not Outlook([BUSY], [ALONE] * 4, beside=7).wants(GIB)
    assert Outlook([BUSY], [ALONE] * 4, beside=8).wants(GIB)
    assert not Outlook([BUSY], [ALONE] * 5, beside=8).wants(GIB)


def test_who_counts_as_asked_for_meanwhile():
    def tender(name: str, trials: int, waiting: dict[int, int | None]) -> list[Any]:
        made = SimpleNamespace(id=name, trials=[None] * trials)
        return [(made, SimpleNamespace(number=number, vram_bytes=asked)) for number, asked in waiting.items()]

    assert _beside_exclusive([]) == 0
    assert _beside_exclusive(tender("a", 20, {3: GIB, 19: GIB})) == 0, "none waits for a device of its own"
    assert _beside_exclusive(tender("a", 20, {5: ALONE, 9: GIB, 12: ALONE})) == 13, "6 to 19 without 12"
    assert _beside_exclusive(tender("a", 20, {19: ALONE})) == 0
    assert _beside_exclusive(tender("a", 20, {5: ALONE}) + tender("b", 8, {1: ALONE, 2: ALONE})) == 14 + 5


def wants_another(rooms, waiting, smallest) -> bool:
    """The rule as it is written, over everything anew."""
    alone, most = waiting.count(ALONE), len(rooms) + 1
    if not rooms or alone > most or len(waiting) - alone >= most:
        return False
    left = list(waiting)
    for room in rooms:
        found = [position for position, request in enumerate(left) if fits(request, room)]
        if found:
            del left[found[0]]
        elif fits(smallest, room):
            return True
    return False


@pytest.mark.parametrize("seed", range(300))
def test_one_trial_after_another_it_says_what_it_would_say_with_all_of_them_from_the_start(seed):
    rng = random.Random(seed)
    sizes = [ALONE, GIB, 4 * GIB, 9 * GIB, 30 * GIB]

    def room(number: int) -> Room:
        idle = rng.random() < 0.4
        return Room(f"GPU-{number}", rng.choice([0, 2, 8, 16, 40]) * GIB, idle=idle, slots=rng.choice([0, 1, 3]))

    rooms = [room(number) for number in range(rng.randrange(7))]
    waiting = [rng.choice(sizes) for _ in range(rng.randrange(5))]
    outlook = Outlook(rooms, waiting)
    for _ in range(8):
        smallest = rng.choice(sizes)
        assert outlook.wants(smallest) == wants_another(rooms, waiting, smallest)
        waiting.append(rng.choice(sizes))
        outlook.add(waiting[-1])


def test_rooms_are_those_of_the_records_however_few_have_changed():
    def record(name: str, **changes: Any) -> WorkerRecord:
        return WorkerRecord(name, "hub", 1, f"GPU-{name}", name, "cuda", 9, 8, 8, 4, **{"state": "ready", **changes})

    rooms, one, two = Rooms(), record("one"), record("two")
    for records in ([one, two], [one, record("two", earmark="a-1")], [record("one", state="paused"), two], [two], []):
        assert rooms.of(records) == rooms_of(records)
    assert rooms.of([one])[0] is rooms.of([one])[0]
