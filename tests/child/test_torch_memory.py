"""The cap of a trial's memory with torch: set, lowered, raised, kept from the objective; and what it asks for."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from support.child_driver import ChildDriver, Story, recapped

from vrampool.units import MIB
from vrampool_worker.children.child import EventKind

#: Stands in for torch on a GPU, as far as the runtime speaks to it: queued calls, fraction, allocator, stats.
FAKE_TORCH = """
import sys, types
LOG = []
GIB = 2**30
TOTAL = 10 * GIB

class OutOfMemoryError(RuntimeError): pass
OutOfMemoryError.__module__ = "torch"

class _C:
    fraction = 1.0
    reserved = allocated = peak = ooms = retries = 0
    observers = []
    @classmethod
    def _cuda_attach_out_of_memory_observer(cls, observer): cls.observers.append(observer)
    @classmethod
    def _cuda_setMemoryFraction(cls, fraction, device):
        assert cuda._allocator_ready, "the allocator is not there yet"
        cls.fraction = fraction
        LOG.append(("fraction", round(fraction, 4), cls.reserved))
    @classmethod
    def _cuda_getMemoryFraction(cls, device):
        return cls.fraction

def manual_seed(seed): LOG.append(("seed", seed))

cuda = types.ModuleType("torch.cuda")
memory = cuda.memory = types.ModuleType("torch.cuda.memory")
cuda._allocator_ready = False
cuda._initialized = False
cuda._queued = []
def _lazy_call(call): call() if cuda._initialized else cuda._queued.append(call)
def _lazy_init():
    if cuda._allocator_ready: return
    cuda._allocator_ready = True
    for call in cuda._queued: call()
    cuda._initialized = True
def is_initialized(): return cuda._initialized
def device_count(): return 1
def mem_get_info(device=None): _lazy_init(); return (TOTAL, TOTAL)
def memory_reserved(device=None): return _C.reserved
def empty_cache(): _C.reserved = _C.allocated
def synchronize(): pass
def memory_allocated(device=None): return _C.allocated
def set_per_process_memory_fraction(fraction, device=None):
    _lazy_init(); _C._cuda_setMemoryFraction(fraction, 0)
def reset_peak_memory_stats(device=None): _C.peak = _C.reserved
def reset_accumulated_memory_stats(device=None): _C.ooms = _C.retries = 0
def memory_stats_as_nested_dict(device=None):
    return {"reserved_bytes": {"all": {"current": _C.reserved, "peak": _C.peak}},
            "allocated_bytes": {"all": {"current": _C.allocated, "peak": _C.peak}},
            "num_ooms": _C.ooms, "num_alloc_retries": _C.retries}
def alloc(size):
    _lazy_init()
    if _C.allocated + size > _C.fraction * TOTAL:
        _C.ooms += 1
        for observer in _C.observers: observer(0, size, int(_C.fraction * TOTAL), 9 * GIB)
        raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / GIB:.2f} GiB. GPU 0 has a total "
            f"capacity of 10.00 GiB of which 9.00 GiB is free. {_C.fraction * TOTAL / GIB:.2f} GiB allowed; ")
    _C.allocated += size
    _C.reserved = max(_C.reserved, _C.allocated)
    _C.peak = max(_C.peak, _C.reserved)
def free(size): _C.allocated -= size
for item in (_lazy_call, _lazy_init, is_initialized, device_count, mem_get_info, memory_reserved, empty_cache,
             synchronize, memory_allocated, set_per_process_memory_fraction, reset_peak_memory_stats,
             reset_accumulated_memory_stats, memory_stats_as_nested_dict, alloc, free):
    setattr(cuda, item.__name__, item)
for item in (set_per_process_memory_fraction, reset_peak_memory_stats, reset_accumulated_memory_stats):
    setattr(memory, item.__name__, item)
cuda.init = _lazy_init
sys.modules["torch.cuda"] = cuda
sys.modules["torch.cuda.memory"] = memory
backends = types.SimpleNamespace(
    cuda=types.SimpleNamespace(is_built=lambda: True), cudnn=types.SimpleNamespace(benchmark=True))
AT_END_OF_IMPORT = list(LOG)
"""

GIB = 1024**3

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@pytest.fixture
def gpu(driver: ChildDriver, tmp_path: Path) -> ChildDriver:
    """A driver whose children find a torch that plays a GPU of 10 GiB."""
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    return driver


def with_fake(driver: ChildDriver) -> dict[str, str]:
    paths = [str(driver.folder), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def on_gpu(driver: ChildDriver, body: str, *, preload: bool = False, cap_bytes: int = 2 * GIB, **more: float) -> Story:
    """Start an objective with a GPU's cap; `body` is its code, with `torch` imported."""
    story = driver.spawn(preload=("torch",) if preload else (), env=with_fake(driver))
    source = "import time\ndef objective(trial):\n    import torch\n    G = 2**30\n" + "".join(
        f"    {line}\n" for line in body.splitlines()
    )
    return driver.start(story, source, device="cuda", cap_bytes=cap_bytes, total_bytes=10 * GIB, **more)


@pytest.mark.parametrize("preload", [False, True])
def test_the_cap_is_set_when_cuda_begins_and_not_before(gpu: ChildDriver, preload: bool) -> None:
    """No context is created for it, and not a byte can be had before it holds."""
    story = on_gpu(
        gpu,
        "assert not torch.cuda.is_initialized()\n"
        "torch.cuda.alloc(1 * G)\n"
        "assert torch.LOG[-1] == ('fraction', 0.2, 0), torch.LOG\n"
        "trial.set_user_attr('benchmark', torch.backends.cudnn.benchmark)\n"
        "torch.cuda.alloc(2 * G)\nreturn 1.0",
        preload=preload,
    )
    gpu.until(lambda: story.child.gone)
    assert story.outcome.kind == "oom", str(story)
    assert story.outcome.memory["asked_bytes"] == 2 * GIB
    assert story.outcome.sample["num_ooms"] == 1
    assert story.outcome.sample["cap_bytes"] == 2 * GIB
    assert story.outcome.sample["max_torch_reserved_bytes"] == GIB
    assert story.first(EventKind.STARTED) == {
        "cap_bytes": 2 * GIB,
        "cap_source": "torch, at its first use of CUDA" if preload else "torch, once it is imported",
    }
    assert story.trial is not None and story.trial.user_attrs["benchmark"] is False


def test_an_objective_cannot_raise_its_cap(gpu: ChildDriver) -> None:
    """It may lower it; more is refused with a warning, also around our guard."""
    story = on_gpu(
        gpu,
        "torch.cuda.set_per_process_memory_fraction(0.9)\n"
        "assert torch._C.fraction == 0.2, torch._C.fraction\n"
        "torch.cuda.memory.set_per_process_memory_fraction(0.1)\n"
        "assert torch._C.fraction == 0.1\n"
        "torch._C.fraction = 1.0\n"
        "end = time.monotonic() + 5\n"
        "while torch._C.fraction > 0.2 and time.monotonic() < end: time.sleep(0.01)\n"
        "return torch._C.fraction",
    )
    gpu.until(lambda: story.child.gone)
    assert story.outcome.values == [0.1], str(story)
    assert "is more than this trial's lease" in story.log


def test_samples_tell_what_is_held_and_peaks_survive_a_reset(gpu: ChildDriver) -> None:
    story = on_gpu(
        gpu,
        "torch.cuda.alloc(1 * G)\ntorch.cuda.free(1 * G)\ntorch.cuda.empty_cache()\ntorch._C.ooms = 3\n"
        "torch.cuda.reset_peak_memory_stats()\ntorch.cuda.memory.reset_accumulated_memory_stats()\n"
        "torch.cuda.alloc(G // 2)\ntime.sleep(0.5)\nreturn 1.0",
    )
    gpu.until(lambda: story.child.gone)
    samples = [event.data for event in story.events if event.kind is EventKind.SAMPLE]
    assert samples
    last = samples[-1]
    assert (last["allocated_bytes"], last["max_torch_reserved_bytes"], last["num_ooms"]) == (GIB // 2, GIB, 3)
    assert last["cuda_initialized"] and last["cap_bytes"] == 2 * GIB


def test_in_its_first_seconds_a_trial_is_sampled_more_often_than_later(gpu: ChildDriver) -> None:
    """Whether it has come to its peak is waited for; with 30 s between two samples it would not be known here."""
    story = on_gpu(
        gpu,
        "torch.cuda.alloc(1 * G)\ntime.sleep(60)",
        sample_interval_s=30.0,
    )
    gpu.until(lambda: sum(event.kind is EventKind.SAMPLE for event in story.events) >= 4)
    story.child.kill()
    gpu.until(lambda: story.child.gone)


def test_a_cap_is_lowered_after_the_cache_is_emptied(gpu: ChildDriver) -> None:
    story = on_gpu(
        gpu,
        "torch.cuda.alloc(2 * G)\ntorch.cuda.free(G + G // 2)\nprint('begun')\n"
        "end = time.monotonic() + 10\n"
        "while torch._C.fraction > 0.15 and time.monotonic() < end: time.sleep(0.01)\n"
        "print(torch.LOG)\nprint('lowered')\n"
        "while torch._C.fraction < 0.25 and time.monotonic() < end: time.sleep(0.01)\nreturn 1.0",
    )
    gpu.until(lambda: "begun" in story.child.log_tail())
    story.child.recap(GIB)
    gpu.until(lambda: story.first(EventKind.RECAPPED))
    assert story.first(EventKind.RECAPPED) == recapped(GIB, GIB, freed=GIB + GIB // 2, held=GIB // 2)
    gpu.until(lambda: "lowered" in story.child.log_tail())
    story.child.recap(3 * GIB)
    gpu.until(lambda: story.kinds.count("recapped") == 2)
    assert [event.data for event in story.events if event.kind is EventKind.RECAPPED][1]["cap_bytes"] == 3 * GIB
    gpu.until(lambda: story.child.gone)
    assert story.outcome.values == [1.0], str(story)


def test_a_cap_is_never_lowered_below_what_is_in_use(gpu: ChildDriver) -> None:
    """It may have grown since the worker looked; lowered all the same, its next step would fail."""
    story = on_gpu(gpu, "torch.cuda.alloc(G + G // 2)\nprint('begun')\ntime.sleep(1)\nreturn 1.0")
    gpu.until(lambda: "begun" in story.child.log_tail())
    story.child.recap(GIB)
    gpu.until(lambda: story.first(EventKind.RECAPPED))
    assert story.first(EventKind.RECAPPED) == recapped(GIB, GIB + GIB // 2, held=GIB + GIB // 2)
    gpu.until(lambda: story.child.gone)


def test_a_recap_before_torch_is_there_is_kept_for_it(gpu: ChildDriver) -> None:
    story = gpu.spawn(env=with_fake(gpu))
    gpu.start(
        story,
        "import time\ndef objective(trial):\n    print('begun')\n    time.sleep(0.5)\n    import torch\n"
        "    torch.cuda.alloc(1)\n    return torch._C.fraction\n",
        device="cuda",
        cap_bytes=2 * GIB,
        total_bytes=10 * GIB,
    )
    gpu.until(lambda: "begun" in story.child.log_tail())
    story.child.recap(GIB)
    gpu.until(lambda: story.child.gone)
    assert story.outcome.values == [0.1], str(story)


def test_the_helpers_of_training_learn_the_lease_and_report_through_it(gpu: ChildDriver) -> None:
    story = on_gpu(
        gpu,
        "from vrampool.training import runtime\n"
        "facts = runtime.current()\n"
        "trial.set_user_attr('facts', [facts.device, facts.cap_bytes, facts.slots])\n"
        "for _ in range(25): runtime.count_steps(1)\n"
        "runtime.note_hint('shapes', 'pad them')\n"
        "for _ in range(2):\n    try:\n        torch.cuda.alloc(3 * G)\n"
        "    except torch.OutOfMemoryError:\n        pass\n"
        "runtime.note_oom_handled(2)\nreturn 1.0",
    )
    gpu.until(lambda: story.child.gone)
    assert story.trial is not None and story.trial.user_attrs["facts"] == ["cuda", 2 * GIB, 1], str(story)
    assert [event.data["steps"] for event in story.events if event.kind is EventKind.STEP][:2] == [1, 20]
    assert story.first(EventKind.HINT) == {"text": "pad them"}
    assert (story.outcome.sample["num_ooms"], story.outcome.sample["num_ooms_handled"]) == (2, 2)


GROWS = (
    "for _ in range({times}):\n    try:\n        torch.cuda.alloc(G // 4)\n"
    "    except torch.OutOfMemoryError:\n        return torch._C.allocated / G\n    {look}\n"
    "return torch._C.allocated / G"
)


@pytest.mark.parametrize(
    "look", ["trial.report(0.0, _)", "from vrampool.training import runtime; runtime.count_steps(1)"]
)
def test_a_trial_asks_for_more_at_nine_tenths_of_its_cap_and_waits_for_the_answer(gpu: ChildDriver, look: str) -> None:
    """Between two steps, and before a report: the next piece of memory is there when it is asked for."""
    story = on_gpu(gpu, GROWS.format(times=12, look=look))
    asked = []
    while not story.child.gone:
        gpu.turn(0.02)
        grows = [event.data for event in story.events if event.kind is EventKind.GROW]
        for wish in grows[len(asked) :]:
            asked.append(wish)
            story.child.recap(wish["cap_bytes"] + GIB)
    assert story.outcome.values == [3.0], str(story)
    assert asked[0] == {"held_bytes": 2 * GIB, "cap_bytes": 2 * GIB}
    assert story.outcome.sample["num_ooms"] == 0


def test_the_sampling_thread_asks_where_nothing_is_reported(gpu: ChildDriver) -> None:
    story = on_gpu(gpu, "torch.cuda.alloc(G + 9 * G // 10)\ntime.sleep(0.5)\nreturn 1.0")
    gpu.until(lambda: story.first(EventKind.GROW))
    story.child.stay("somebody else has the rest")
    gpu.until(lambda: story.child.gone)
    assert story.outcome.values == [1.0]
    assert story.kinds.count("grow") == 1, "a no is not asked again at once"


def test_a_trial_that_gets_no_answer_goes_on_to_its_own_cap(gpu: ChildDriver) -> None:
    """Nothing waits for ever: a worker that is silent costs a quarter of a second."""
    story = on_gpu(gpu, GROWS.format(times=12, look="trial.report(0.0, _)"))
    gpu.until(lambda: story.child.gone)
    assert story.outcome.values == [2.0], str(story)
    assert (story.outcome.sample["num_ooms"], story.kinds.count("grow")) == (1, 1)


def test_an_error_that_the_objective_catches_is_told_with_its_figures(gpu: ChildDriver) -> None:
    story = on_gpu(
        gpu,
        "torch.cuda.alloc(G)\ntry:\n    torch.cuda.alloc(3 * G)\nexcept torch.OutOfMemoryError:\n    pass\nreturn 0.5",
    )
    gpu.until(lambda: story.child.gone)
    sample = story.outcome.sample
    assert (sample["num_ooms"], sample["num_ooms_handled"]) == (1, 0)
    figures = {name: sample[f"oom_{name}_bytes"] // GIB for name in ("asked", "allowed", "free", "reserved")}
    assert figures == {"asked": 3, "allowed": 2, "free": 9, "reserved": 1}


def test_what_a_library_below_python_met_and_dealt_with_is_none_of_the_objectives_errors(gpu: ChildDriver) -> None:
    """cuDNN tries algorithms whose workspace it is refused, and takes another one: the trial is what it was to be."""
    story = on_gpu(
        gpu,
        "from vrampool.training import runtime\n"
        "def below(size):\n    torch._C.ooms += 1\n    for tell in torch._C.observers: tell(0, size, 2 * G, 9 * G)\n"
        "def fail(size):\n    try:\n        torch.cuda.alloc(size)\n    except torch.OutOfMemoryError:\n        pass\n"
        "torch.cuda.alloc(1)\nbelow(7 * G)\nfail(3 * G)\nbelow(5 * G)\nruntime.note_oom_handled(3)\n"
        "below(6 * G)\nfail(4 * G)\nbelow(8 * G)\nreturn 0.5",
    )
    gpu.until(lambda: story.child.gone)
    sample = story.outcome.sample
    assert (sample["num_ooms"], sample["num_ooms_raised"], sample["num_ooms_handled"]) == (6, 2, 1), str(story)
    assert sample["oom_asked_bytes"] == 4 * GIB, "the one that the objective caught itself"


def test_an_error_that_a_helper_caught_on_purpose_hides_none_that_comes_later(gpu: ChildDriver) -> None:
    """And an error of a library, which the allocator does not count, hides none either."""
    story = on_gpu(
        gpu,
        "from vrampool.training import runtime\n"
        "def fail(size):\n    try:\n        torch.cuda.alloc(size)\n    except torch.OutOfMemoryError:\n        pass\n"
        "runtime.note_oom_handled(1)\nfail(3 * G)\nruntime.note_oom_handled(1)\nfail(4 * G)\nreturn 0.5",
    )
    gpu.until(lambda: story.child.gone)
    sample = story.outcome.sample
    assert (sample["num_ooms"], sample["num_ooms_handled"]) == (2, 1)
    assert sample["oom_asked_bytes"] == 4 * GIB


@needs_torch
def test_real_torch_on_the_cpu_runs_without_any_of_it(driver: ChildDriver) -> None:
    story = driver.run(
        "def objective(trial):\n    import torch\n    net = torch.nn.Linear(4, 1)\n"
        "    opt = torch.optim.SGD(net.parameters(), 0.1)\n"
        "    for _ in range(3):\n        opt.zero_grad(); net(torch.ones(2, 4)).sum().backward(); opt.step()\n"
        "    assert torch.backends.cudnn.benchmark is False\n    return 1.0\n",
        cap_bytes=1024 * MIB,
        limit_s=60,
    )
    assert story.outcome.values == [1.0], str(story)
    assert story.first(EventKind.STEP) == {"steps": 1}
