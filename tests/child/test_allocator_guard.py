"""Allocator settings cannot raise a trial's cap, on a torch that pretends and on the one that is installed."""

from __future__ import annotations

import subprocess
import sys
import types
import warnings

import pytest

from vrampool_worker.child.allocator_guard import guard_allocator


class Torch(types.SimpleNamespace):
    """A torch that remembers what it was told."""

    def __init__(self, *setters: str) -> None:
        self.told: list[str] = []
        self.applied = 0
        self._C = types.SimpleNamespace(**dict.fromkeys(setters, self.told.append))
        change = lambda allocator: self.told.append("changed")  # noqa: E731
        self.cuda = types.SimpleNamespace(
            memory=types.SimpleNamespace(change_current_allocator=change), change_current_allocator=change
        )

    def apply(self) -> None:
        self.applied += 1


@pytest.mark.parametrize(
    "name", ["_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings"]
)
def test_the_fraction_is_left_out_of_settings_and_the_rest_goes_through(name):
    torch = Torch(name)
    guard_allocator(torch, torch.apply)
    with pytest.warns(UserWarning, match="per_process_memory_fraction is this trial's lease"):
        getattr(torch._C, name)("expandable_segments:False, per_process_memory_fraction:1.0,max_split_size_mb:64")
    assert torch.told == ["expandable_segments:False,max_split_size_mb:64"]
    assert torch.applied == 1, "settings may have reset it"


def test_settings_that_leave_the_fraction_alone_are_not_complained_about():
    torch = Torch("_accelerator_setAllocatorSettings")
    guard_allocator(torch, torch.apply)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch._C._accelerator_setAllocatorSettings("garbage_collection_threshold:0.6")
    assert (torch.told, torch.applied) == (["garbage_collection_threshold:0.6"], 1)


def test_settings_that_are_the_fraction_alone_change_nothing():
    torch = Torch("_accelerator_setAllocatorSettings")
    guard_allocator(torch, torch.apply)
    with pytest.warns(UserWarning):
        torch._C._accelerator_setAllocatorSettings("per_process_memory_fraction:1.0")
    assert torch.told == []


def test_another_allocator_is_refused():
    torch = Torch()
    guard_allocator(torch, torch.apply)
    for change in (torch.cuda.change_current_allocator, torch.cuda.memory.change_current_allocator):
        with pytest.raises(RuntimeError, match="not be held to the trial's lease"):
            change(object())
    assert torch.told == []


REAL = """
import warnings, torch
from vrampool_worker.child.allocator_guard import guard_allocator
guard_allocator(torch, lambda: print("applied"))
warnings.simplefilter("ignore")
torch._C._accelerator_setAllocatorSettings("per_process_memory_fraction:0.9,max_split_size_mb:64")
torch.cuda.memory._set_allocator_settings("per_process_memory_fraction:0.9,max_split_size_mb:32")
print(torch._C._accelerator_getAllocatorSettings())
try:
    torch.cuda.memory.change_current_allocator(None)
except RuntimeError:
    print("refused")
"""


def test_the_torch_that_is_installed_takes_settings_through_the_guard():
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["applied", "applied", "max_split_size_mb:32", "refused"], done.stderr
