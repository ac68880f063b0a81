"""Mixed precision of a trial, on the CPU, where both half precisions can be computed too."""

from __future__ import annotations

import optuna
import pytest

from vrampool import training
from vrampool.errors import InputError
from vrampool.training import runtime

torch = pytest.importorskip("torch")


class Weight:
    """One parameter with its optimizer; `loss` is that parameter times a factor."""

    def __init__(self) -> None:
        self.value = torch.nn.Parameter(torch.ones(2))
        self.optimizer = torch.optim.SGD([self.value], lr=0.5)

    def loss(self, factor: float = 1.0) -> torch.Tensor:
        return (self.value * factor).sum()


def test_auto_falls_back_to_plain_training_on_the_cpu():
    precision = training.mixed_precision(device="cpu")
    assert (precision.dtype, precision.scaler) == ("float32", None)
    with precision.autocast():
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.float32


def test_bfloat16_needs_no_scaler_and_float16_gets_one_for_each_trial():
    assert training.mixed_precision("bfloat16", device="cpu").scaler is None
    first, second = (training.mixed_precision("float16", device="cpu") for _ in range(2))
    assert first.scaler is not None and first.scaler is not second.scaler


def test_a_pools_cpu_device_is_kept_on_a_host_with_a_gpu(told, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    runtime.install(told.runtime(device="cpu"))
    assert training.mixed_precision().device_type == "cpu"


@pytest.mark.parametrize(("capability", "dtype"), [((9, 0), "bfloat16"), ((8, 0), "bfloat16"), ((7, 5), "float16")])
def test_auto_takes_bfloat16_where_the_card_computes_it(monkeypatch, capability, dtype):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert training.mixed_precision().dtype == dtype


def test_an_overflow_skips_the_step_and_is_reported():
    weight = Weight()
    trial = optuna.trial.FixedTrial({})
    precision = training.mixed_precision("float16", device="cpu")
    scale = precision.scaler.get_scale()
    precision.backward(weight.loss(1e38))  # finite, but not once it is scaled
    assert not precision.step(weight.optimizer)
    assert torch.equal(weight.value, torch.ones(2)), "the weights stay"
    assert weight.value.grad is None, "the bad gradients are gone"
    assert precision.scaler.get_scale() < scale
    precision.backward(weight.loss())
    assert precision.step(weight.optimizer)
    torch.testing.assert_close(weight.value.data, torch.full((2,), 0.5))
    precision.record(trial)
    assert trial.user_attrs["training:skipped_steps"] == 1
    assert trial.user_attrs["training:steps"] == 1
    assert trial.user_attrs["training:dtype"] == "float16"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(("policy", "error"), [("prune", optuna.TrialPruned), ("fail", FloatingPointError)])
def test_a_loss_that_is_not_finite_ends_the_trial_as_asked(dtype, bad, policy, error):
    weight = Weight()
    precision = training.mixed_precision(dtype, device="cpu", on_nonfinite=policy)
    precision.backward(weight.loss(bad))
    with pytest.raises(error, match="optimizer step 1"):
        precision.step(weight.optimizer)
    assert torch.equal(weight.value, torch.ones(2))


def test_one_bad_piece_spoils_its_group_only():
    weight = Weight()
    precision = training.mixed_precision(device="cpu", on_nonfinite="skip")
    accumulator = training.GradientAccumulator(weight.optimizer, 2, precision=precision)
    results = [accumulator.backward(weight.loss(factor), 1) for factor in (float("nan"), 1.0, 1.0, 1.0)]
    assert results == [False, False, False, True]
    assert (precision.steps, precision.skipped_steps) == (1, 1)
    torch.testing.assert_close(weight.value.data, torch.full((2,), 0.5))


def test_skipping_without_end_ends_the_trial():
    weight = Weight()
    precision = training.mixed_precision(device="cpu", on_nonfinite="skip", max_skipped=3)

    def step() -> bool:
        precision.backward(weight.loss(float("nan")))
        return precision.step(weight.optimizer)

    assert [step(), step()] == [False, False]
    with pytest.raises(FloatingPointError, match="3 steps in a row"):
        step()


def test_skipped_steps_with_good_ones_between_do_not_add_up():
    weight = Weight()
    precision = training.mixed_precision(device="cpu", on_nonfinite="skip", max_skipped=2)
    for factor in (float("nan"), 1.0) * 4:
        precision.backward(weight.loss(factor))
        precision.step(weight.optimizer)
    assert (precision.steps, precision.skipped_steps) == (4, 4)


def test_a_scaler_that_never_finds_a_scale_ends_the_trial():
    weight = Weight()
    precision = training.mixed_precision("float16", device="cpu", max_skipped=5)
    with pytest.raises(optuna.TrialPruned, match="5 steps in a row"):
        for _ in range(6):
            precision.backward(weight.loss(1.5e38))
            precision.step(weight.optimizer)


def test_a_norm_that_is_not_finite_ends_the_trial_before_it_harms_the_weights():
    """The loss is finite, its gradient is not: the square root at zero."""
    value = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([value], lr=0.5)
    precision = training.mixed_precision(device="cpu")
    precision.backward(value.sqrt().sum())
    with pytest.raises(optuna.TrialPruned, match="norm"):
        precision.step(optimizer, clip_norm=1.0)
    assert torch.equal(value, torch.zeros(2))


def test_ignore_leaves_the_decision_to_the_objective():
    weight = Weight()
    precision = training.mixed_precision(device="cpu", on_nonfinite="ignore")
    precision.backward(weight.loss(float("nan")))
    assert precision.step(weight.optimizer)


def test_two_optimizers_share_one_scale():
    first, second = Weight(), Weight()
    precision = training.mixed_precision("float16", device="cpu")
    precision.backward(first.loss() + second.loss())
    assert precision.step(first.optimizer, second.optimizer, clip_value=0.5)
    for weight in (first, second):
        torch.testing.assert_close(weight.value.data, torch.full((2,), 0.75))


def test_a_study_goes_on_after_a_trial_that_blew_up():
    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 1.0, 1e30)
        weight = Weight()
        precision = training.mixed_precision(device="cpu")
        accumulator = training.GradientAccumulator(weight.optimizer, 1, precision=precision)
        for _ in range(4):
            accumulator.backward(weight.loss(rate) ** 2, 1)
        return float(weight.loss().detach())

    study = optuna.create_study()
    study.enqueue_trial({"rate": 1e30})
    study.enqueue_trial({"rate": 1.0})
    study.optimize(objective, n_trials=2)
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "COMPLETE"]
    assert study.trials[0].value is None


@pytest.mark.parametrize("wrong", [{"dtype": "half"}, {"on_nonfinite": "explode"}])
def test_unknown_words_are_refused_with_the_known_ones(wrong):
    with pytest.raises(InputError, match="use one of"):
        training.mixed_precision(**wrong)
