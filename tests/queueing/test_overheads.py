"""What the driver holds for a process, kept for workers to come."""

from __future__ import annotations

from vrampool.queueing import Overheads
from vrampool.units import MIB

KEY = Overheads.key("NVIDIA H200", "580.159.04", "2.11.0+cu130")


def test_nothing_is_known_at_first(connection):
    assert Overheads(connection, "p").read(KEY) is None


def test_the_largest_is_kept_for_each_device_driver_and_torch(connection):
    """A cap must hold for every model, so a smaller figure replaces nothing."""
    overheads = Overheads(connection, "p")
    overheads.keep(KEY, 700 * MIB)
    overheads.keep(KEY, 760 * MIB)
    overheads.keep(KEY, 650 * MIB)
    assert Overheads(connection, "p").read(KEY) == 760 * MIB
    assert overheads.read(Overheads.key("NVIDIA H200", "580.159.04", "2.12.0+cu130")) is None


def test_pools_do_not_mix_and_what_nobody_uses_ends(connection):
    Overheads(connection, "p").keep(KEY, 700 * MIB)
    assert Overheads(connection, "q").read(KEY) is None
    (name,) = connection.keys("vrampool:p:*")
    assert connection.ttl(name) > 80 * 24 * 3600
