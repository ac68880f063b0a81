"""Memory is given back inside the process as far as that goes."""

from __future__ import annotations

import gc
import multiprocessing
import weakref

import pytest

from vrampool import training

torch = pytest.importorskip("torch")


class Fails(Exception):
    """Raised by the objectives below."""


def raising(refs: list[weakref.ref]) -> None:
    """Raise with a tensor in a local variable, as any training loop does."""
    activations = torch.zeros(1000)
    refs.append(weakref.ref(activations))
    raise Fails("in the loop")


def test_an_exception_no_longer_holds_the_tensors_of_its_frames():
    refs: list[weakref.ref] = []
    try:
        raising(refs)
    except Fails as error:
        kept = error
    assert refs[0]() is not None, "the traceback holds it"
    training.clean_up(kept)
    assert refs[0]() is None
    assert str(kept) == "in the loop"


def test_causes_contexts_and_groups_are_followed():
    refs: list[weakref.ref] = []

    def chain() -> None:
        try:
            raising(refs)
        except Fails as first:
            try:
                raising(refs)
            except Fails as second:
                raise ExceptionGroup("both", [first, second]) from None

    try:
        chain()
    except ExceptionGroup as error:
        kept = error
    assert [ref() is not None for ref in refs] == [True, True]
    training.clean_up(kept)
    assert [ref() for ref in refs] == [None, None]


def test_release_inside_an_except_block_drops_what_the_handled_error_holds():
    refs: list[weakref.ref] = []
    try:
        raising(refs)
    except Fails:
        training.release()
        assert refs[0]() is None


def test_cycles_are_collected():
    class Node:
        def __init__(self) -> None:
            self.me = self
            self.tensor = torch.zeros(1000)

    gc.disable()
    try:
        node = Node()
        ref = weakref.ref(node)
        del node
        assert ref() is not None
        training.release()
        assert ref() is None
    finally:
        gc.enable()


def test_released_objects_hold_no_memory_although_names_still_refer_to_them():
    model = torch.nn.Linear(100, 100)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    output = torch.zeros(1000)
    storage = weakref.ref(model.weight.untyped_storage())
    training.release(model, optimizer, output)
    assert all(parameter.numel() == 0 and parameter.grad is None for parameter in model.parameters())
    assert not optimizer.state
    assert output.numel() == 0
    assert storage() is None


class Numbers(torch.utils.data.Dataset):
    """Twenty numbers."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return index


def loader(**more: object) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(Numbers(), num_workers=1, multiprocessing_context="fork", **more)


def test_workers_of_data_loaders_are_ended_in_the_middle_of_an_epoch():
    batches = iter(loader())
    next(batches)
    worker = batches._workers[0]
    assert worker.is_alive()
    assert training.clean_up().loaders_ended == 1
    assert not worker.is_alive()
    assert worker not in multiprocessing.active_children()


def test_a_loader_that_keeps_its_workers_can_be_used_again_after_a_release():
    numbers = loader(persistent_workers=True)
    assert len(list(numbers)) == 20
    worker = numbers._iterator._workers[0]
    assert training.release(numbers).loaders_ended == 1
    assert not worker.is_alive()
    assert len(list(numbers)) == 20
    training.release(numbers)


@pytest.mark.slow
def test_release_in_the_middle_of_an_epoch_leaves_its_loader_alone():
    count = 0
    for _ in loader():
        training.release()
        count += 1
    assert count == 20


def test_cleaning_up_makes_no_context_on_a_gpu_that_was_not_used():
    training.clean_up(ValueError())
    assert not torch.cuda.is_initialized()


def test_a_device_that_no_longer_answers_is_told_and_does_not_raise(monkeypatch):
    """After a device-side assert every call fails, the clean-up's own too."""

    def broken() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered\nmore lines")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    for name, value in (("memory_allocated", 5), ("memory_reserved", 7)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    done = training.clean_up(RuntimeError("first"))
    assert done.problem == "CUDA error: device-side assert triggered"
    assert (done.allocated_bytes, done.torch_reserved_bytes) == (5, 7)


def test_the_device_is_waited_for_before_its_cache_is_emptied(monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: calls.append(name))
    for name in ("memory_allocated", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda: 0)
    training.release()
    assert calls == ["synchronize", "empty_cache"]
