"""When one more trial is asked for."""

from __future__ import annotations

import pytest

from vrampool.coordinator.depth import Room, wants_another
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
    assert wants_another(rooms, waiting, smallest) is wanted


def test_those_that_need_a_device_of_their_own_gather_while_others_run():
    """One drain serves them all; but not so many that the sampler knows nothing of what it asked for long ago."""
    assert wants_another([BUSY], [ALONE, ALONE], GIB)
    assert wants_another([BUSY], [ALONE, ALONE, 16 * GIB], GIB)
    assert not wants_another([BUSY], [ALONE, ALONE, ALONE], GIB)
