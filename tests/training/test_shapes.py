"""Shapes that vary from step to step give a hint."""

from __future__ import annotations

import pytest

from vrampool import training
from vrampool.training import runtime

torch = pytest.importorskip("torch")


def make_loader(lengths, batch_size=4):
    rows = [torch.zeros(length) for length in lengths]

    def pad(items):
        return torch.nn.utils.rnn.pad_sequence(items, batch_first=True), torch.zeros(len(items))

    return torch.utils.data.DataLoader(rows, batch_size=batch_size, collate_fn=pad)


def test_batches_padded_to_their_own_longest_row_give_a_hint(told):
    runtime.install(told.runtime())
    for _ in make_loader(range(1, 41)):
        pass
    assert len(told.hints) == 1
    assert "(4, 4), (4, 8)" in told.hints[0]
    assert "pad them" in told.hints[0]


def test_equal_shapes_with_a_short_last_batch_over_epochs_give_none(told):
    runtime.install(told.runtime())
    loader = make_loader([6] * 10)
    for _ in range(5):
        assert sum(len(x) for x, _ in loader) == 10
    assert told.hints == []


def test_training_and_validation_of_other_sizes_give_none(told):
    runtime.install(told.runtime())
    train, valid = make_loader([6] * 12), make_loader([9] * 12, batch_size=6)
    for _ in range(3):
        list(train)
        list(valid)
    assert told.hints == []


def test_the_loader_gives_the_same_batches_and_is_left_as_it_was(told):
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    untouched = _BaseDataLoaderIter.__next__
    before = [x.shape for x, _ in make_loader(range(1, 41))]
    runtime.install(told.runtime())
    assert _BaseDataLoaderIter.__next__ is not untouched
    assert [x.shape for x, _ in make_loader(range(1, 41))] == before
    assert told.hints
    assert _BaseDataLoaderIter.__next__ is untouched, "it steps aside once it knows"


def test_the_accumulator_sees_shapes_of_any_source(told):
    runtime.install(told.runtime())
    value = torch.nn.Parameter(torch.ones(2))
    accumulator = training.GradientAccumulator(torch.optim.SGD([value], lr=0.1), 1)
    for _ in accumulator.batches({"x": torch.zeros(2, width)} for width in (3, 4, 5)):
        accumulator.backward(value.sum(), 1)
    assert len(told.hints) == 1
