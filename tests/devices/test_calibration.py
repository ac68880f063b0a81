"""The overhead of a device: known before the first lease, kept when it grows, also past a Redis that is away."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vrampool.queueing import TransientRedisError
from vrampool.units import MIB
from vrampool_worker.calibration import Calibration, key_of
from vrampool_worker.ledger.overhead import FIRST_BYTES, Overhead

TORCH = "2.11.0+cu130"


class Loop(SimpleNamespace):
    """A worker's loop as far as it goes; `known` is what Redis holds, None of it where it is away."""

    def __init__(self, kind: str = "cuda", known: dict[str, int] | None = None) -> None:
        self.known, self.away, self.writes = {} if known is None else known, False, 0
        super().__init__(
            device=SimpleNamespace(kind=kind, name="NVIDIA H200", driver="580.1"),
            ledger=SimpleNamespace(overhead=Overhead()),
            port=SimpleNamespace(read_overhead=self.read, keep_overhead=self.keep),
            queue_lane=SimpleNamespace(submit=self.submit),
        )

    def read(self, key):
        if self.away:
            raise TransientRedisError("Redis is away")
        return self.known.get(key)

    def keep(self, key, size):
        if self.away:
            raise TransientRedisError("Redis is away")
        self.known[key] = size
        self.writes += 1

    def submit(self, work, then):
        try:
            work()
        except TransientRedisError as error:
            then(None, error)
        else:
            then(None, None)


def test_a_figure_learned_before_is_there_before_the_first_lease():
    loop = Loop(known={"NVIDIA H200|580.1|2.11.0+cu130": 700 * MIB})
    Calibration(loop, TORCH).begin()
    assert loop.ledger.overhead.learned_bytes == 700 * MIB


def test_of_another_driver_or_torch_nothing_is_taken():
    loop = Loop(known={"NVIDIA H200|570.1|2.11.0+cu130": 700 * MIB, "NVIDIA H200|580.1|2.10.0": 600 * MIB})
    Calibration(loop, TORCH).begin()
    assert loop.ledger.overhead.learned_bytes == FIRST_BYTES


def test_what_trials_show_is_kept_once_and_again_when_it_has_grown():
    loop = Loop()
    calibration = Calibration(loop, TORCH)
    calibration.begin()
    calibration.look()
    assert loop.writes == 0, "a guess is not kept"
    loop.ledger.overhead.learn(2700 * MIB, 2000 * MIB)
    for _ in range(3):
        calibration.look()
    assert (loop.writes, loop.known) == (1, {"NVIDIA H200|580.1|2.11.0+cu130": 700 * MIB})
    loop.ledger.overhead.learn(2701 * MIB, 2000 * MIB)
    calibration.look()
    assert loop.writes == 1, "a MiB is no news"
    loop.ledger.overhead.learn(2760 * MIB, 2000 * MIB)
    calibration.look()
    assert loop.writes == 2


def test_while_redis_is_away_nothing_fails_and_it_is_kept_later():
    loop = Loop()
    loop.away = True
    calibration = Calibration(loop, TORCH)
    calibration.begin()
    loop.ledger.overhead.learn(2700 * MIB, 2000 * MIB)
    calibration.look()
    assert loop.known == {}
    loop.away = False
    calibration.look()
    assert list(loop.known.values()) == [700 * MIB]


@pytest.mark.parametrize(("kind", "torch"), [("cpu", TORCH), ("cuda", None)])
def test_on_the_cpu_and_without_torch_there_is_none(kind, torch):
    assert key_of(Loop(kind).device, torch) is None


@pytest.mark.parametrize("size", [0, 64 * MIB, 3000 * MIB])
def test_a_kept_figure_that_can_be_no_overhead_is_left_out(size):
    """Somebody may have written anything there."""
    overhead = Overhead()
    overhead.calibrate(size)
    assert overhead.learned_bytes == FIRST_BYTES
