"""Whose fault an out-of-memory error was."""

from __future__ import annotations

import pytest

from vrampool.memory import MemoryFault, MemoryKind, VerdictNumbers, judge
from vrampool.messages import Verdict
from vrampool.units import GIB, MIB

CUDA, HOST = MemoryKind.CUDA, MemoryKind.HOST


def fault(asked=None, allowed=None, free=None, in_use=None, kind=CUDA):
    return MemoryFault(kind, asked, allowed, free, in_use)


def verdict(error, **numbers):
    return judge(error, VerdictNumbers(**({"lease_bytes": 10 * GIB} | numbers))).verdict


def test_at_its_own_cap_with_room_on_the_card_it_is_the_culprit():
    assert verdict(fault(2 * GIB, 9 * GIB, 100 * GIB)) == Verdict.CULPRIT


def test_on_a_full_card_within_its_lease_it_is_a_victim():
    assert verdict(fault(GIB, None, 20 * MIB), used_bytes=3 * GIB) == Verdict.VICTIM


def test_on_a_full_card_at_its_lease_it_is_the_culprit():
    assert verdict(fault(GIB, None, 20 * MIB), used_bytes=10 * GIB) == Verdict.CULPRIT


def test_one_that_asks_beyond_its_lease_is_no_victim_of_a_full_card():
    """Its own cap would have refused it on an empty card too, so the same lease would fail again."""
    assert verdict(fault(4 * GIB, None, 20 * MIB), used_bytes=7 * GIB) == Verdict.CULPRIT


def test_a_cap_named_on_a_full_card_does_not_make_a_culprit():
    """torch names the cap whenever there is one, whether it was what refused or not."""
    assert verdict(fault(GIB, 9 * GIB, 20 * MIB), used_bytes=3 * GIB) == Verdict.VICTIM


def test_free_memory_smaller_than_the_allocators_pieces_is_a_full_card():
    assert verdict(fault(2 * MIB, 9 * GIB, 6 * MIB), used_bytes=3 * GIB) == Verdict.VICTIM


def test_the_errors_own_figures_go_before_the_last_sample():
    error = fault(GIB, None, 20 * MIB, in_use=3 * GIB)
    assert verdict(error, used_bytes=10 * GIB, device_free_bytes=50 * GIB) == Verdict.VICTIM


@pytest.mark.parametrize(
    ("used", "free", "expected"),
    [
        (3 * GIB, 100 * MIB, Verdict.VICTIM),
        (10 * GIB, 100 * MIB, Verdict.CULPRIT),
        (3 * GIB, 50 * GIB, Verdict.UNKNOWN),
        (3 * GIB, None, Verdict.UNKNOWN),
        (None, 100 * MIB, Verdict.UNKNOWN),
    ],
)
def test_without_figures_in_the_text_the_last_sample_decides(used, free, expected):
    assert verdict(fault(), used_bytes=used, device_free_bytes=free) == expected


@pytest.mark.parametrize(
    ("asked", "used", "device_free", "expected"),
    [
        (196 * MIB, 10 * GIB - 42 * MIB, 15 * GIB, Verdict.CULPRIT),  # its own limit is full, and the device is not
        (196 * MIB, 10 * GIB - 42 * MIB, 0, Verdict.CULPRIT),  # as it would have been on an empty device
        (None, 10 * GIB - 300 * MIB, 15 * GIB, Verdict.CULPRIT),  # a library's handle, near the limit
        (GIB, 6 * GIB, 200 * MIB, Verdict.VICTIM),  # far from its limit on a full device
        (GIB, 6 * GIB, 15 * GIB, Verdict.UNKNOWN),
    ],
)
def test_what_a_client_of_mps_is_told_is_free_is_of_its_own_limit(asked, used, device_free, expected):
    """Taken for the device's, a trial that needs more than its lease was called a victim, and tried again for ever."""
    error = fault(asked, None, 42 * MIB, in_use=used)
    assert verdict(error, device_free_bytes=device_free, driver_limit_bytes=10 * GIB) == expected


def test_with_nothing_known_of_its_use_nobody_is_called_a_victim():
    assert verdict(fault(GIB, None, 20 * MIB)) == Verdict.UNKNOWN


def test_host_memory_on_a_gpu_never_raises_the_request():
    assert verdict(fault(kind=HOST), used_bytes=3 * GIB) == Verdict.HOST


@pytest.mark.parametrize("kind", [HOST, CUDA])
def test_on_the_cpu_every_memory_death_is_the_culprits(kind):
    """XLA words it the same on both devices."""
    assert verdict(fault(kind=kind), on_cpu=True) == Verdict.CULPRIT


def test_a_shrunk_lease_is_our_fault():
    error = fault(2 * GIB, 3 * GIB, 50 * GIB, in_use=3 * GIB)
    assert verdict(error, lease_bytes=4 * GIB, lease_before_shrink_bytes=10 * GIB) == Verdict.SHRINK


def test_one_that_would_have_outgrown_its_old_lease_too_is_the_culprit():
    error = fault(20 * GIB, 3 * GIB, 50 * GIB, in_use=3 * GIB)
    assert verdict(error, lease_bytes=4 * GIB, lease_before_shrink_bytes=10 * GIB) == Verdict.CULPRIT


@pytest.mark.parametrize(
    "error", [fault(), fault(2 * GIB, 9 * GIB, 100 * GIB), fault(kind=HOST), fault(GIB, None, MIB, GIB)]
)
@pytest.mark.parametrize("on_cpu", [True, False])
def test_every_judgement_names_the_lease_it_ran_with(error, on_cpu):
    assert "lease of 10.0 GiB" in judge(error, VerdictNumbers(10 * GIB, on_cpu=on_cpu)).reason
