"""Gradients in pieces equal those of the large batch."""

from __future__ import annotations

import copy

import optuna
import pytest

from vrampool import training
from vrampool.errors import InputError

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(count, 8, generator=generator)
    return x, torch.randint(0, 3, (count,), generator=generator)


class KeepsGradients(torch.optim.SGD):
    """Keeps the gradients of each step, since the accumulator drops them afterwards."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[list[torch.Tensor]] = []

    def step(self, closure=None):
        self.seen.append([p.grad.clone() for group in self.param_groups for p in group["params"]])
        return super().step(closure)


def large_batch_gradients(model: torch.nn.Module, x, y, *, clip_norm=None, reduction="mean"):
    model = copy.deepcopy(model)
    functional.cross_entropy(model(x), y, reduction=reduction).backward()
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    return [parameter.grad for parameter in model.parameters()]


def assert_same(found, expected, *, rtol=1e-5, atol=1e-7):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("clip_norm", [None, 0.05, 100.0])
@pytest.mark.parametrize(("count", "piece", "steps"), [(64, 16, 4), (64, 64, 1), (60, 20, 3)])
def test_a_full_group_gives_the_gradients_of_the_large_batch(count, piece, steps, clip_norm):
    model = network()
    x, y = samples(count)
    expected = large_batch_gradients(model, x, y, clip_norm=clip_norm)
    optimizer = KeepsGradients(model.parameters(), lr=0.1)
    accumulator = training.GradientAccumulator(optimizer, steps, clip_norm=clip_norm)
    stepped = [
        accumulator.backward(functional.cross_entropy(model(px), py), len(px))
        for px, py in zip(x.split(piece), y.split(piece))
    ]
    assert stepped == [False] * (steps - 1) + [True]
    assert_same(optimizer.seen[0], expected)


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_a_short_last_piece_counts_by_its_samples(clip_norm):
    """16 + 16 + 16 + 5: a mean of the pieces' means would weigh the last five samples three times."""
    model = network()
    x, y = samples(53)
    expected = large_batch_gradients(model, x, y, clip_norm=clip_norm)
    optimizer = KeepsGradients(model.parameters(), lr=0.1)
    accumulator = training.GradientAccumulator(optimizer, 4, clip_norm=clip_norm)
    for px, py in zip(x.split(16), y.split(16)):
        accumulator.backward(functional.cross_entropy(model(px), py), len(px))
    assert_same(optimizer.seen[0], expected)


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_an_incomplete_last_group_gives_the_gradients_of_its_samples(clip_norm):
    """Two groups of four pieces, then one of 16 + 7 samples."""
    model = network()
    x, y = samples(64 + 23)
    optimizer = KeepsGradients(model.parameters(), lr=0.0)
    accumulator = training.GradientAccumulator(optimizer, 4, clip_norm=clip_norm)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
    for px, py in accumulator.batches(loader):
        accumulator.backward(functional.cross_entropy(model(px), py), len(px))
    assert accumulator.precision.steps == 2
    assert_same(optimizer.seen[0], large_batch_gradients(model, x[:64], y[:64], clip_norm=clip_norm))
    assert_same(optimizer.seen[1], large_batch_gradients(model, x[64:], y[64:], clip_norm=clip_norm))


def test_summed_losses_give_the_gradients_of_the_large_sum():
    model = network()
    x, y = samples(40)
    expected = large_batch_gradients(model, x, y, reduction="sum")
    optimizer = KeepsGradients(model.parameters(), lr=0.1)
    accumulator = training.GradientAccumulator(optimizer, 3, reduction="sum")
    for px, py in zip(x.split(16), y.split(16)):
        accumulator.backward(functional.cross_entropy(model(px), py, reduction="sum"), len(px))
    assert_same(optimizer.seen[0], expected)


def test_tokens_are_weighed_like_samples():
    """Pieces with different numbers of targets, as padded sequences have: the mean is taken of all of them."""
    model = network()
    x, y = samples(48)
    y[3:15] = -100  # ignored targets: pieces of 4, 16 and 16
    expected = large_batch_gradients(model, x, y)
    optimizer = KeepsGradients(model.parameters(), lr=0.1)
    accumulator = training.GradientAccumulator(optimizer, 3)
    for px, py in zip(x.split(16), y.split(16)):
        accumulator.backward(functional.cross_entropy(model(px), py), int((py != -100).sum()))
    assert_same(optimizer.seen[0], expected)


@pytest.mark.parametrize(("dtype", "rtol", "atol"), [("bfloat16", 0.1, 0.01), ("float16", 0.02, 0.002)])
def test_pieces_in_mixed_precision_give_the_gradients_within_its_rounding(dtype, rtol, atol):
    model = network()
    x, y = samples(53)
    expected = large_batch_gradients(model, x, y, clip_norm=0.5)
    optimizer = KeepsGradients(model.parameters(), lr=0.1)
    precision = training.mixed_precision(dtype, device="cpu")
    accumulator = training.GradientAccumulator(optimizer, 4, precision=precision, clip_norm=0.5)
    for px, py in zip(x.split(16), y.split(16)):
        with precision.autocast():
            outputs = model(px)
            assert outputs.dtype == getattr(torch, dtype)
            loss = functional.cross_entropy(outputs, py)
        accumulator.backward(loss, len(px))
    assert (precision.steps, precision.skipped_steps) == (1, 0)
    assert_same(optimizer.seen[0], expected, rtol=rtol, atol=atol)


def test_gradients_from_before_are_not_in_the_first_step():
    model = network()
    x, y = samples(32)
    expected = large_batch_gradients(model, x, y)
    functional.cross_entropy(model(x), y).backward()
    optimizer = KeepsGradients(model.parameters(), lr=0.1)
    accumulator = training.GradientAccumulator(optimizer, 2)
    for px, py in zip(x.split(16), y.split(16)):
        accumulator.backward(functional.cross_entropy(model(px), py), len(px))
    assert_same(optimizer.seen[0], expected)


def test_a_whole_training_in_pieces_ends_with_the_weights_of_the_large_batch():
    """Three epochs of 200 samples in batches of 64: three full steps and one of 8 samples each."""
    batch = training.EffectiveBatch(size=64, physical_size=16, steps=4)
    x, y = samples(200)
    whole, pieces = network(), network()
    for model, size in ((whole, batch.size), (pieces, batch.physical_size)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        accumulator = training.GradientAccumulator(optimizer, batch.size // size, clip_norm=0.3)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=size)
        for _ in range(3):
            for px, py in accumulator.batches(loader):
                accumulator.backward(functional.cross_entropy(model(px), py), len(px))
        assert accumulator.precision.steps == 12
    assert_same(list(pieces.parameters()), list(whole.parameters()), rtol=1e-4, atol=1e-5)


def test_a_batch_that_was_loaded_whole_is_split_and_flushed():
    model = network()
    x, y = samples(20)
    expected = large_batch_gradients(model, x, y)
    batch = training.EffectiveBatch(size=32, physical_size=8, steps=4)
    optimizer = KeepsGradients(model.parameters(), lr=0.1)
    accumulator = training.GradientAccumulator(optimizer, batch.steps)
    for px, py in batch.split(x, y):
        accumulator.backward(functional.cross_entropy(model(px), py), len(px))
    assert optimizer.seen == []
    assert accumulator.flush()
    assert not accumulator.flush(), "a second flush has nothing to step for"
    assert_same(optimizer.seen[0], expected)


@pytest.mark.parametrize(
    ("size", "physical", "steps"), [(32, 32, 1), (64, 64, 1), (128, 64, 2), (512, 64, 8), (96, 48, 2), (100, 50, 2)]
)
def test_the_effective_batch_is_cut_into_equal_pieces(size, physical, steps):
    trial = optuna.trial.FixedTrial({"batch_size": size})
    batch = training.effective_batch(trial, [32, 64, 96, 100, 128, 512], max_physical=64)
    assert batch == training.EffectiveBatch(size, physical, steps)
    assert batch.physical_size * batch.steps == batch.size


def test_only_the_effective_size_is_a_parameter_of_the_study():
    study = optuna.create_study()
    study.optimize(lambda trial: float(training.effective_batch(trial, [64, 128], max_physical=64).size), n_trials=4)
    assert {name for trial in study.trials for name in trial.params} == {"batch_size"}


def test_a_size_without_equal_pieces_is_refused_whatever_is_drawn():
    trial = optuna.trial.FixedTrial({"batch_size": 64})
    with pytest.raises(InputError, match=r"127 has no equal pieces .* use 128"):
        training.effective_batch(trial, [64, 127], max_physical=64)


@pytest.mark.parametrize(("sizes", "most"), [([], 64), ([0, 64], 64), ([64], 0)])
def test_sizes_below_one_are_refused(sizes, most):
    with pytest.raises(InputError, match="1 or more"):
        training.effective_batch(optuna.trial.FixedTrial({"batch_size": 64}), sizes, max_physical=most)


def test_a_group_or_piece_of_nothing_is_refused():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError):
        training.GradientAccumulator(optimizer, 0)
    with pytest.raises(InputError):
        training.GradientAccumulator(optimizer, 2).backward(torch.zeros(()), 0)
