"""Memory that torch reserves and the trial does not use: one hint, which names the setting to change."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vrampool.messages import MemorySample, Ticket
from vrampool.units import GIB, MIB
from vrampool_worker.attempts import Attempt
from vrampool_worker.children.events import Event, EventKind
from vrampool_worker.gap_watch import GAP_S, GapWatch, allocator_options
from vrampool_worker.running import Runner

EXPANDABLE = "expandable_segments:True"


def watch(samples, *, options="", every_s=0.5):
    """Feed (allocated, reserved, peak allocated) in GiB; return the hints with their times."""
    gaps, found = GapWatch(options), []
    for place, (allocated, reserved, peak) in enumerate(samples):
        sample = MemorySample(
            allocated_bytes=int(allocated * GIB),
            torch_reserved_bytes=int(reserved * GIB),
            max_allocated_bytes=int(peak * GIB),
        )
        hint = gaps.note(sample, place * every_s)
        if hint:
            found.append((place * every_s, hint))
    return found


def test_a_fragmented_trial_is_told_of_expandable_segments_once():
    ((at_s, hint),) = watch([(2, 6, 2.5)] * 300)
    assert at_s == GAP_S
    assert hint == (
        "for 30 s torch kept 6.0 GiB reserved of which at most 2.0 GiB were in use, and never more than 2.5 GiB: it is "
        "fragmented; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in env=, or max_split_size_mb:128 where that "
        "is not supported"
    )


def test_where_that_is_on_already_sizes_are_named():
    ((_, hint),) = watch([(2, 6, 2.5)] * 100, options=f"max_split_size_mb:64, {EXPANDABLE}")
    assert "although expandable_segments is on" in hint and "garbage_collection_threshold:0.6" in hint


def test_the_cache_of_an_earlier_peak_is_told_apart_from_fragments():
    ((_, hint),) = watch([(5.5, 6, 5.5)] * 40 + [(1, 6, 5.5)] * 100, options=EXPANDABLE)
    assert "the cache of an earlier peak of 5.5 GiB is kept; call torch.cuda.empty_cache()" in hint
    assert "between training and evaluation" in hint


def test_a_step_that_uses_its_memory_now_and_then_is_no_gap():
    """Between two steps activations are gone; that reserve is needed in each."""
    assert watch([(5, 6, 5), *[(1, 6, 5)] * 40] * 10) == []


@pytest.mark.parametrize("stretch_s", [5, 29])
def test_a_short_gap_is_none(stretch_s):
    assert watch(([(5, 6, 5)] + [(1, 6, 5)] * (2 * stretch_s - 1)) * 5) == []


def test_a_gap_begins_anew_after_each_use():
    ((at_s, _),) = watch([(1, 6, 5)] * 40 + [(5, 6, 5)] + [(1, 6, 5)] * 100)
    assert at_s == pytest.approx(20 + GAP_S, abs=1)


@pytest.mark.parametrize(("allocated", "reserved"), [(3.1, 6), (0.1, 0.5), (0, 0)])
def test_half_and_little_are_fine(allocated, reserved):
    assert watch([(allocated, reserved, allocated)] * 200) == []


def test_few_samples_prove_nothing():
    assert watch([(1, 6, 1)] * 15, every_s=5) == []


def test_a_trial_without_torch_has_no_gap():
    gaps = GapWatch("")
    assert [gaps.note(MemorySample(), at_s) for at_s in range(100)] == [""] * 100


def test_the_allocators_options_are_those_of_the_trial():
    """Its own env= before the device's."""
    device = {"PYTORCH_ALLOC_CONF": EXPANDABLE, "PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE}
    assert allocator_options({}, device) == EXPANDABLE
    assert allocator_options({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, device) == "max_split_size_mb:64"
    assert allocator_options({}, {}) == ""


def test_the_least_gap_is_counted_in_bytes_too():
    assert watch([(0.2, 0.2 + 511 / 1024, 0.2)] * 200) == []
    assert len(watch([(0.2, 0.2 + 513 * MIB / GIB, 0.2)] * 200)) == 1


def test_a_worker_keeps_the_hint_among_the_facts_of_the_attempt(monkeypatch):
    """Samples of its child are watched; the allocator's options are those of the device and of the submission."""
    clock = iter(range(1000))
    monkeypatch.setattr("vrampool_worker.running.time.monotonic", lambda: float(next(clock)))
    loop = SimpleNamespace(
        mps=None,
        every=lambda _s, _call: None,
        memory=SimpleNamespace(on_sample=lambda attempt: None),
        device=SimpleNamespace(child_env=lambda: {"PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE}),
    )
    runner = Runner(loop)
    attempts = []
    for env in ({}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}):
        attempt = Attempt("job", "lease", Ticket("pool", "digits", "sub", 3, 3, None), 0.0, None)
        attempt.spec = SimpleNamespace(env=env)
        runner._attempts[child := object()] = attempt
        attempts.append(attempt)
        sample = MemorySample(allocated_bytes=GIB, torch_reserved_bytes=6 * GIB, max_allocated_bytes=2 * GIB)
        for _ in range(100):
            runner.on_event(child, Event(EventKind.SAMPLE, sample.to_json()))
    assert [len(attempt.hints) for attempt in attempts] == [1, 1]
    assert "although expandable_segments is on" in attempts[0].hints[0]
    assert "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in attempts[1].hints[0]
