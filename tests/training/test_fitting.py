"""The batch size that fits a lease is found in the trial's own process, and nothing of the failed tries stays."""

from __future__ import annotations

import random
import sys
import weakref

import numpy
import optuna
import pytest

from vrampool import training
from vrampool.errors import InputError
from vrampool.training import runtime

torch = pytest.importorskip("torch")


class Card:
    """A training function on a pretended card: holds up to `room` samples, and tells what earlier calls left behind."""

    def __init__(self, room: int, error: BaseException | None = None) -> None:
        self.room = room
        self.error = error or torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.left: list[weakref.ref] = []
        self.alive_at_start: list[int] = []

    def __call__(self, size: int) -> float:
        self.alive_at_start.append(sum(ref() is not None for ref in self.left))
        model = torch.nn.Linear(4, 4)
        output = model(torch.ones(size, 4))
        self.left += [weakref.ref(model), weakref.ref(output)]
        if size > self.room:
            raise self.error
        return float(output.detach().mean())


def trial() -> optuna.trial.FixedTrial:
    return optuna.trial.FixedTrial({})


def test_sizes_are_halved_until_one_fits_and_it_is_recorded(told):
    runtime.install(told.runtime(lease_bytes=100))
    asked = trial()
    fitted = training.find_batch_size(asked, Card(40), start=256)
    assert fitted.batch_size == 32
    assert fitted.tried == (256, 128, 64, 32)
    assert asked.user_attrs == {"training:batch_size": 32}
    assert told.ooms_handled == 3, "the pool must not retry the trial for them"


def test_a_size_that_fits_at_once_is_kept(told):
    runtime.install(told.runtime())
    assert training.find_batch_size(trial(), Card(256), start=256).tried == (256,)
    assert told.ooms_handled == 0


def test_nothing_of_a_failed_try_is_alive_when_the_next_begins():
    card = Card(16)
    training.find_batch_size(trial(), card, start=256)
    assert card.alive_at_start == [0] * 5


def test_an_error_with_a_cause_leaks_nothing_either():
    card = Card(16)

    def wrapped(size: int) -> float:
        held = torch.zeros(size)
        card.left.append(weakref.ref(held))
        try:
            return card(size)
        except RuntimeError as error:
            raise MemoryError("no room") from error

    assert training.find_batch_size(trial(), wrapped, start=64).batch_size == 16
    assert [alive - 1 for alive in card.alive_at_start] == [0, 0, 0], "only the running call's own tensor"


def test_the_last_try_starts_from_the_same_random_state_as_the_first():
    def draws(room: int) -> list[float]:
        random.seed(1)
        numpy.random.seed(1)
        torch.manual_seed(1)
        card = Card(room)

        def fn(size: int) -> list[float]:
            drawn = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
            card(size)
            return drawn

        return training.find_batch_size(trial(), fn, start=64).value

    assert draws(room=8) == draws(room=64)


def test_a_trial_too_large_at_the_smallest_size_raises_its_own_error(told):
    runtime.install(told.runtime())
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"2\.00 GiB"):
        training.find_batch_size(trial(), Card(4), start=64, minimum=24)
    assert told.ooms_handled == 2, "the last one is the pool's to judge"


def test_the_smallest_size_is_tried_even_if_halving_skips_it():
    assert training.find_batch_size(trial(), Card(24), start=64, minimum=24).tried == (64, 32, 24)


def test_other_errors_pass_at_once():
    card = Card(0, error=ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        training.find_batch_size(trial(), card, start=64)
    assert len(card.alive_at_start) == 1


def test_a_pruned_trial_is_pruned():
    with pytest.raises(optuna.TrialPruned):
        training.find_batch_size(trial(), Card(0, error=optuna.TrialPruned()), start=64)


@pytest.mark.parametrize(("start", "minimum"), [(8, 0), (8, 9), (0, 1)])
def test_sizes_that_make_no_range_are_refused(start, minimum):
    with pytest.raises(InputError):
        training.find_batch_size(trial(), Card(8), start=start, minimum=minimum)


class ServiceOutOfMemoryError(Exception):
    """Named like a service's error that has nothing to do with this process."""


ServiceOutOfMemoryError.__name__ = "OutOfMemoryError"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (numpy.exceptions.AxisError("no"), False),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("shape mismatch"), False),
        (ServiceOutOfMemoryError("command not allowed when used memory > 'maxmemory': out of memory"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_out_of_memory_is_told_from_everything_else(error, expected):
    assert training.is_out_of_memory(error) is expected


def test_what_the_hosts_allocators_really_raise_is_recognised():
    for allocate in (lambda: torch.empty(2**55), lambda: numpy.empty(2**55), lambda: bytearray(2**60)):
        with pytest.raises((RuntimeError, MemoryError)) as raised:
            allocate()
        assert training.is_out_of_memory(raised.value)


def test_a_study_records_the_size_of_each_trial():
    def objective(trial: optuna.Trial) -> float:
        width = trial.suggest_int("width", 1, 4)
        return training.find_batch_size(trial, Card(64 // width), start=64).value

    study = optuna.create_study(sampler=optuna.samplers.GridSampler({"width": [1, 2, 4]}))
    study.optimize(objective, n_trials=3)
    assert {t.params["width"]: t.user_attrs["training:batch_size"] for t in study.trials} == {1: 64, 2: 32, 4: 16}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the process's memory")
def test_a_real_limit_of_the_process_is_fitted_into(tmp_path):
    """In a process of its own, held to 600 MiB more than it has, as a child of the device "cpu" is."""
    import subprocess

    code = """
import resource, optuna, psutil, torch
from vrampool import training
torch.set_num_threads(1)
limit = psutil.Process().memory_info().vms + 600 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
def fn(size):
    x = torch.ones(size, 2**20)   # 4 MiB a sample, and as much again for its double
    return float((x * 2).sum())
fitted = training.find_batch_size(optuna.trial.FixedTrial({}), fn, start=512)
print(fitted.tried, fitted.value == 2 * fitted.batch_size * 2**20)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "(512, 256, 128, 64) True", done.stderr
