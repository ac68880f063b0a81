"""Settings that the child applies before user code runs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator

import numpy
import pytest

from vrampool import training
from vrampool.errors import InputError

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _restore_torch() -> Iterator[None]:
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    yield
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = benchmark


def draw() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def test_a_seed_repeats_all_three_generators_and_another_gives_others():
    draws = []
    for seed in (7, 7, 8):
        training.apply_settings(seed=seed, env={})
        draws.append(draw())
    assert draws[0] == draws[1]
    assert all(first != other for first, other in zip(draws[0], draws[2]))


@pytest.mark.parametrize("seed", [0, 2**31, 2**40 + 3, 2**64 + 5])
def test_seeds_of_any_size_are_taken(seed):
    assert training.apply_settings(seed=seed, env={}).seed == seed


def test_no_seed_leaves_the_generators_alone():
    random.seed(1)
    expected = random.random()
    random.seed(1)
    training.apply_settings(env={})
    assert random.random() == expected


def test_benchmark_mode_is_off_unless_it_is_asked_for():
    torch.backends.cudnn.benchmark = True
    training.apply_settings(env={})
    assert torch.backends.cudnn.benchmark is False
    training.apply_settings(cudnn_benchmark=True, env={})
    assert torch.backends.cudnn.benchmark is True
    training.apply_settings(env={"VRAMPOOL_CUDNN_BENCHMARK": "1"})
    assert torch.backends.cudnn.benchmark is True
    training.apply_settings(cudnn_benchmark=True, env={"VRAMPOOL_CUDNN_BENCHMARK": "0"})
    assert torch.backends.cudnn.benchmark is False


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, 1),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"VRAMPOOL_TORCH_THREADS": "2"}, 2),
        ({"VRAMPOOL_TORCH_THREADS": "2", "OMP_NUM_THREADS": "1"}, 2),
    ],
)
def test_threads_are_the_trials_share_unless_the_user_says_otherwise(env, expected):
    torch.set_num_threads(2)
    training.apply_settings(threads=1, env=env)
    assert torch.get_num_threads() == expected


@pytest.mark.parametrize(("cores", "slots", "threads"), [(16, 4, 4), (16, 3, 5), (2, 8, 1), (8, 0, 8)])
def test_cores_are_shared_among_the_trials_of_a_host(cores, slots, threads):
    assert training.threads_for(cores, slots) == threads


def test_the_seed_can_be_replaced_or_turned_off_by_variable():
    assert training.apply_settings(seed=1, env={"VRAMPOOL_SEED": "42"}).seed == 42
    assert training.apply_settings(seed=1, env={"VRAMPOOL_SEED": "off"}).seed is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("VRAMPOOL_SEED", "x"),
        ("VRAMPOOL_SEED", "-1"),
        ("VRAMPOOL_TORCH_THREADS", "0"),
        ("VRAMPOOL_CUDNN_BENCHMARK", "2"),
    ],
)
def test_variables_without_a_valid_value_are_named(name, text):
    with pytest.raises(InputError, match=name):
        training.apply_settings(env={name: text})


def allocator_settings(env: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, old: bool = False) -> list[str]:
    asked: list[str] = []
    if old:
        monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings", raising=False)
        monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", asked.append)
    else:
        monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", asked.append, raising=False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    assert training.apply_settings(env=env).expandable_segments is bool(asked)
    return asked


@pytest.mark.parametrize("old", [False, True])
def test_expandable_segments_are_on_where_the_user_has_not_chosen(monkeypatch, old):
    assert allocator_settings({}, monkeypatch, old=old) == ["expandable_segments:True"]


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_a_users_own_allocator_setting_is_left_alone(name, monkeypatch):
    assert allocator_settings({name: "expandable_segments:False"}, monkeypatch) == []


def test_the_allocator_is_not_changed_once_the_gpu_is_in_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert allocator_settings({}, monkeypatch) == []


def test_numpy_is_seeded_although_it_is_imported_later():
    code = (
        "from vrampool import training; training.apply_settings(seed=5)\n"
        "import numpy; print(numpy.random.randint(10**9))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
        ).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1
