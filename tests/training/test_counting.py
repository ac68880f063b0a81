"""Optimizer steps are counted whoever takes them."""

from __future__ import annotations

import pytest

from vrampool import training
from vrampool.training import runtime

torch = pytest.importorskip("torch")


def make_optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def step(optimizer):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_steps_of_a_plain_loop_are_counted_once(told):
    runtime.install(told.runtime())
    optimizer = make_optimizer()
    for _ in range(7):
        step(optimizer)
    assert told.steps == 7


def test_two_optimizers_that_take_turns_count_as_one(told):
    runtime.install(told.runtime())
    first, second = make_optimizer(), make_optimizer()
    for _ in range(3):
        step(first)
        step(second)
    assert told.steps == 3


def test_the_accumulator_counts_steps_and_not_pieces(told):
    runtime.install(told.runtime())
    value = torch.nn.Parameter(torch.ones(2))
    accumulator = training.GradientAccumulator(torch.optim.Adam([value]), 4)
    for _ in accumulator.batches(range(10)):
        accumulator.backward(value.sum(), 1)
    assert told.steps == 3


def test_a_step_that_a_scaler_skips_is_not_counted(told):
    runtime.install(told.runtime())
    value = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([value], lr=0.1)
    precision = training.mixed_precision("float16", device="cpu")
    for factor in (1e38, 1.0):
        precision.backward((value * factor).sum())
        precision.step(optimizer)
    assert told.steps == 1


def test_a_second_trial_in_the_process_starts_its_own_count(told):
    runtime.install(told.runtime())
    step(make_optimizer())
    other = type(told)()
    runtime.install(other.runtime())
    step(make_optimizer())
    assert (told.steps, other.steps) == (1, 1)
