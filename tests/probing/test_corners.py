"""Which corners the probe runs, and what it concludes, on made-up memory: no pool, no trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from vrampool.probing.corners import Corners, CornerSearch, Run
from vrampool.probing.findings import Device, Findings, Found, one_line
from vrampool.probing.space import Space, is_batch, rank

MIB = 1024**2
BUDGET = 1000 * MIB
CPU = Device("a processor", "cpu", BUDGET, 4)
CARD = Device("a card", "cuda", BUDGET, 4)


class MadeUp:
    """A search space with a function of memory, in MiB; what is over the budget runs out of it."""

    def __init__(self, memory: Callable[..., float], **distributions: Any) -> None:
        self.memory = memory
        self.space = Space()
        self.space.see(distributions)
        self.asked: list[dict[str, Any]] = []

    def run(self, params: Mapping[str, Any], corner: str) -> Run:
        self.asked.append(dict(params))
        needed = int(self.memory(**params) * MIB)
        end = "fits" if needed <= BUDGET else "does not fit"
        return Run(len(self.asked), corner, dict(params), end, min(needed, BUDGET + MIB))

    def search(self, limit: int = 10) -> Corners:
        return CornerSearch(self.space, self.run, limit).search()


def conclude(corners: Corners, device: Device = CPU) -> Findings:
    return Found("probe-x", "x.py:objective", [], corners).conclude([device], 1.0)


BATCH = CategoricalDistribution([16, 64, 256, 1024])
WIDTH = IntDistribution(32, 512)
RATE = FloatDistribution(1e-4, 1e-1, log=True)


def test_the_first_corner_has_every_size_at_its_largest():
    made = MadeUp(lambda batch, width, rate: 100 + batch * width / 1024, batch=BATCH, width=WIDTH, rate=RATE)
    found = made.search()
    assert made.asked[0] == {"batch": 1024, "width": 512, "rate": 0.1}
    assert found.worst is found.runs[0] and found.worst.fits
    assert [effect.name for effect in found.effects] == ["batch", "width", "rate"], "the likely drivers first"
    assert [round(effect.factor or 0, 1) for effect in found.effects] == [5.7, 4.6, 1.0]
    assert conclude(found).notes == ("memory does not follow rate",)


def test_a_parameter_that_needs_more_when_it_is_small_is_found():
    made = MadeUp(lambda batch, stride: 100 + batch / stride, batch=BATCH, stride=IntDistribution(2, 8))
    found = made.search()
    assert found.worst is not None and found.worst.params == {"batch": 1024, "stride": 2}
    assert [(effect.name, effect.worst, effect.best) for effect in found.effects][1] == ("stride", 2, 8)


def test_each_word_of_a_choice_is_tried_and_the_worst_is_kept():
    kinds = {"small": 1, "large": 5, "middle": 3}
    made = MadeUp(
        lambda kind, batch: 100 + kinds[kind] * batch / 64, kind=CategoricalDistribution(list(kinds)), batch=BATCH
    )
    found = made.search()
    assert found.worst is not None and found.worst.params == {"kind": "large", "batch": 1024}


@pytest.mark.parametrize("limit", [2, 3, 5])
def test_no_more_corners_are_run_than_allowed_and_what_was_left_out_is_named(limit: int):
    sizes = {f"size_{letter}": WIDTH for letter in "abcdefgh"}
    made = MadeUp(lambda **sizes: sum(sizes.values()) / 8, **sizes)
    found = made.search(limit)
    assert len(made.asked) == limit
    assert len(found.untried) == 8 - (limit - 1)
    assert found.untried[0] in conclude(found).notes[0]


def test_where_the_worst_does_not_fit_the_largest_batch_that_does_is_found():
    made = MadeUp(lambda batch, width: 100 + batch * width / 128, batch=BATCH, width=WIDTH)
    found = made.search()
    assert found.bound is not None
    assert (found.bound.name, found.bound.fits, found.bound.too_large) == ("batch", 64, 256)
    findings = conclude(found)
    assert not findings.fits
    assert findings.advice[0].helper.startswith("training.effective_batch")
    assert "max_physical=64" in findings.advice[0].example
    assert not any("mixed_precision" in item.helper for item in findings.advice), "on the CPU it is plain training"
    assert any("mixed_precision" in item.helper for item in conclude(found, CARD).advice)
    assert "batch=1024" in one_line(findings) and "64" in one_line(findings)


def test_the_one_line_names_the_worst_corner_and_not_a_drawn_trial_that_is_too_large_as_well():
    made = MadeUp(lambda tokens: tokens, tokens=IntDistribution(10, 4000))
    drawn = Run(0, "drawn at random", {"tokens": 1777}, "does not fit", 1200 * MIB)
    findings = Found("probe-x", "x.py:objective", [drawn], made.search()).conclude([CPU], 1.0)
    assert one_line(findings).startswith("tokens=4000 fits no device")


def test_a_number_that_is_no_batch_is_halved_between_what_fits_and_what_does_not():
    made = MadeUp(lambda tokens: tokens, tokens=IntDistribution(10, 4000))
    found = made.search(9)
    assert found.bound is not None
    assert found.bound.fits <= 1000 < found.bound.too_large
    assert found.bound.too_large <= 2 * found.bound.fits, "it was closed in on"
    assert len(found.runs) <= 9
    assert "tokens" in conclude(found).advice[0].what and not conclude(found).advice[0].helper


def test_where_no_parameter_alone_helps_the_smallest_corner_is_tried():
    made = MadeUp(lambda batch, width: batch + width * 3, batch=IntDistribution(100, 2000), width=WIDTH)
    found = made.search()
    assert found.bound is None and found.smallest is not None and found.smallest.fits
    assert "several at once" in conclude(found).advice[-1].what


def test_where_nothing_fits_the_advice_is_to_offload():
    made = MadeUp(lambda batch, width: 5000 + batch + width, batch=BATCH, width=WIDTH)
    findings = conclude(made.search())
    assert [item.helper for item in findings.advice] == ["training.load_offloaded"]
    assert findings.largest is None
    assert [room.of_largest for room in findings.rooms] == [0]


def test_a_drawn_trial_that_does_not_fit_counts_though_the_largest_corner_does():
    made = MadeUp(lambda width: 100 + width, width=WIDTH)
    odd = Run(0, "drawn at random", {"width": 77}, "does not fit", 1200 * MIB)
    findings = Found("probe-x", "x.py:objective", [odd], made.search()).conclude([CPU], 1.0)
    assert one_line(findings).startswith("width=77 fits no device")
    assert not findings.fits and "width=77 does not fit, though" in findings.advice[0].what


def test_a_largest_corner_that_fails_by_itself_is_no_good_news():
    made = MadeUp(lambda width: 100, width=WIDTH)
    search = CornerSearch(made.space, lambda params, corner: Run(1, corner, params, "failed", None, note="no"), 10)
    drawn = Run(0, "drawn at random", {"width": 77}, "fits", 100 * MIB)
    findings = Found("probe-x", "x.py:objective", [drawn], search.search()).conclude([CPU], 1.0)
    assert findings.fits and not findings.conclusive
    assert "what it needs is not known" in findings.notes[0]


def test_concurrency_is_what_the_budget_holds_with_the_margin_that_the_pool_asks_for():
    made = MadeUp(lambda width: width / 2, width=WIDTH)
    (room,) = conclude(made.search()).rooms
    # 256 MiB and a margin of 64 MiB each: three in 1 000 MiB.
    assert (room.of_largest, room.total_bytes) == (3, 3 * 256 * MIB)
    assert conclude(made.search()).advice == ()


def test_a_parameter_of_another_branch_is_no_corner_of_this_one():
    space = {"kind": CategoricalDistribution(["a", "b"]), "only_b": WIDTH}
    made = MadeUp(lambda kind, only_b=0: 100, **space)
    run = made.run

    def conditional(params: Mapping[str, Any], corner: str) -> Run:
        kept = {name: value for name, value in params.items() if name != "only_b" or params["kind"] == "b"}
        return run(kept, corner)

    found = CornerSearch(made.space, conditional, 10).search()
    assert [effect.name for effect in found.effects] == ["kind"]


def test_parameters_of_a_branch_that_turns_out_to_be_the_worst_are_tried_too():
    space = {"depth": IntDistribution(1, 64), "kind": CategoricalDistribution(["a", "b"])}
    made = MadeUp(lambda kind, depth=0: 100 + 5 * depth, **space)
    run = made.run

    def conditional(params: Mapping[str, Any], corner: str) -> Run:
        return run({key: value for key, value in params.items() if key == "kind" or params["kind"] == "b"}, corner)

    found = CornerSearch(made.space, conditional, 10).search()
    assert found.worst is not None and found.worst.params == {"kind": "b", "depth": 64}
    assert [effect.name for effect in found.effects] == ["kind", "depth"]


@pytest.mark.parametrize("name", ["batch_size", "batchSize", "train.batch", "bs"])
def test_a_batch_is_known_by_its_name(name: str):
    assert is_batch(name) and rank(name) == 0


def test_learning_rates_are_tried_last():
    assert sorted(["lr", "width", "weight_decay", "batch_size", "kernel"], key=rank) == [
        "batch_size",
        "width",
        "kernel",
        "lr",
        "weight_decay",
    ]
