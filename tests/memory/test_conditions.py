"""What a conditional parameter hangs on, and what a trial may have that was not planned."""

from __future__ import annotations

from vrampool.memory.learning.conditions import Decider, decider_of, may_have
from vrampool.memory.learning.learned import learn
from vrampool.memory.peaks import PastPeak
from vrampool.units import GIB, MIB

ROWS = [
    {"model": "mlp", "amp": True, "width": 64},
    {"model": "mlp", "amp": False, "width": 128},
    {"model": "resnet", "amp": True, "resolution": 64},
    {"model": "transformer", "amp": False, "width": 32, "sequence": 8},
]
CHOICES = {"model", "amp"}


def test_a_parameter_hangs_on_the_choice_that_tells_of_it_in_every_trial():
    assert decider_of("width", ROWS, CHOICES) == Decider("model", frozenset({"'mlp'", "'transformer'"}))
    assert decider_of("sequence", ROWS, CHOICES) == Decider("model", frozenset({"'transformer'"}))


def test_of_two_such_choices_it_is_the_one_with_more_values():
    rows = [ROWS[0], ROWS[3], {"model": "resnet", "amp": True, "resolution": 64}]
    assert decider_of("sequence", rows, CHOICES) == Decider("model", frozenset({"'transformer'"}))


def test_what_comes_and_goes_within_each_choice_hangs_on_none():
    rows = [{"model": "mlp", "clip": 1.0}, {"model": "mlp"}, {"model": "resnet"}, {"model": "resnet", "clip": 2.0}]
    assert decider_of("clip", rows, CHOICES) is None
    assert may_have({"clip"}, {"model": "mlp"}, rows, CHOICES) == (frozenset({"clip"}), frozenset())


def test_a_trial_may_have_what_others_with_its_choice_have():
    names = {"width", "resolution", "sequence"}
    assert may_have(names, {"model": "mlp"}, ROWS, CHOICES) == (frozenset({"width"}), frozenset({"model"}))
    assert may_have(names, {"model": "unheard of"}, ROWS, CHOICES) == (frozenset(), frozenset())
    assert may_have({"width"}, {}, ROWS, CHOICES) == (frozenset({"width"}), frozenset()), "nothing is known of it"


def test_one_family_is_not_sized_by_the_parameters_of_another():
    """A ResNet with mixed precision was, where none was seen yet: as wide and as deep as the largest perceptron."""

    def held(model: str, amp: bool, gib: float, **more: int) -> PastPeak:
        return PastPeak(int(gib * GIB), params={"model": model, "amp": amp, **more}, overhead_bytes=700 * MIB)

    rows = [held("mlp", True, 0.8 + 2.0**i, width=256 * 2**i) for i in range(4)]
    rows += [held("resnet", False, 0.8 + 0.4 * 2.0**i, batch=16 * 2**i) for i in range(4)]
    learned = learn(rows)
    assert learned is not None
    asked = learned.predict({"model": "resnet", "amp": True, "batch": 32})
    assert asked.upper_bytes < 4 * GIB
    unplanned = learned.predict({"model": "resnet", "amp": True})
    assert unplanned.middle_bytes < unplanned.upper_bytes < 12 * GIB
