"""The cap and the return of memory on a real GPU."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from support.child_driver import ChildDriver, Story, wait_for

from vrampool.units import GIB, MIB
from vrampool_worker.children.child import EventKind

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU"),
]


def used_bytes() -> int:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.check_output(query, text=True)) * MIB


def total_bytes() -> int:
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.check_output(query, text=True)) * MIB


def on_gpu(
    driver: ChildDriver, body: str, *, preload: tuple[str, ...] = (), cap_bytes: int = 2 * GIB, settings: str = ""
) -> Story:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "0", "PYTORCH_CUDA_ALLOC_CONF": settings}
    story = driver.spawn(preload=preload, env=env)
    if preload:
        driver.until(lambda: story.child.ready, limit_s=120)
    source = "import time\ndef objective(trial):\n    import torch\n    G = 2**30\n" + "".join(
        f"    {line}\n" for line in body.splitlines()
    )
    return driver.start(story, source, device="cuda", cap_bytes=cap_bytes, total_bytes=total_bytes())


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
@pytest.mark.parametrize("preload", [(), ("torch",)])
def test_the_cap_holds_from_the_first_byte_on(driver: ChildDriver, preload: tuple[str, ...], settings: str) -> None:
    story = on_gpu(
        driver,
        "assert not torch.cuda.is_initialized(), 'a context was made ahead'\n"
        "x = torch.empty(G, dtype=torch.uint8, device='cuda').fill_(1)\n"
        "y = torch.empty(2 * G, dtype=torch.uint8, device='cuda')\nreturn 1.0",
        preload=preload,
        settings=settings,
    )
    driver.until(lambda: story.child.gone, limit_s=120)
    assert story.outcome.kind == "oom", str(story)
    assert story.outcome.memory["asked_bytes"] == 2 * GIB
    assert abs(story.outcome.memory["allowed_bytes"] - 2 * GIB) < 32 * MIB
    assert abs(story.outcome.sample["cap_bytes"] - 2 * GIB) < 4 * MIB
    assert story.outcome.sample["max_allocated_bytes"] == GIB
    assert story.outcome.sample["num_ooms"] >= 1
    assert story.log.count("vrampool: ") == 0


def test_an_objective_cannot_raise_it(driver: ChildDriver) -> None:
    story = on_gpu(
        driver,
        "torch.cuda.set_per_process_memory_fraction(1.0)\n"
        "torch.empty(3 * G, dtype=torch.uint8, device='cuda')\nreturn 1.0",
    )
    driver.until(lambda: story.child.gone, limit_s=120)
    assert story.outcome.kind == "oom", str(story)
    story = on_gpu(
        driver,
        "torch.cuda.set_per_process_memory_fraction(0.001)\n"
        "torch.empty(1 * G, dtype=torch.uint8, device='cuda')\nreturn 1.0",
    )
    driver.until(lambda: story.child.gone, limit_s=120)
    assert story.outcome.kind == "oom", str(story)


def test_a_fraction_raised_around_the_guard_is_set_back(driver: ChildDriver) -> None:
    story = on_gpu(
        driver,
        "torch.ones(1, device='cuda')\ntorch._C._cuda_setMemoryFraction(1.0, 0)\n"
        "end = time.monotonic() + 10\n"
        "while torch.cuda.get_per_process_memory_fraction() > 0.5 and time.monotonic() < end: time.sleep(0.01)\n"
        "return torch.cuda.get_per_process_memory_fraction()",
    )
    driver.until(lambda: story.child.gone, limit_s=120)
    assert story.outcome.values is not None and story.outcome.values[0] < 0.5, str(story)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_a_lease_shrinks_and_grows_under_a_training_trial(driver: ChildDriver, settings: str) -> None:
    story = on_gpu(
        driver,
        "big = [torch.empty(G // 4, dtype=torch.uint8, device='cuda') for _ in range(24)]\ndel big\n"
        "net = torch.nn.Linear(1024, 1024).cuda()\nopt = torch.optim.SGD(net.parameters(), 0.01)\nprint('begun')\n"
        "end = time.monotonic() + 60\n"
        "while time.monotonic() < end and torch.cuda.memory_reserved() > G // 2:\n"
        "    opt.zero_grad(); net(torch.randn(512, 1024, device='cuda')).sum().backward(); opt.step()\n"
        "print('shrunk', torch.cuda.memory_reserved())\n"
        "try:\n    torch.empty(2 * G, dtype=torch.uint8, device='cuda')\n    return 0.0\n"
        "except torch.cuda.OutOfMemoryError:\n    pass\n"
        "print('refused')\n"
        "while time.monotonic() < end:\n"
        "    try:\n        torch.empty(2 * G, dtype=torch.uint8, device='cuda')\n        return 1.0\n"
        "    except torch.cuda.OutOfMemoryError:\n        time.sleep(0.01)\n"
        "return 0.5",
        cap_bytes=8 * GIB,
        settings=settings,
    )
    driver.until(lambda: "begun" in story.child.log_tail() or story.child.gone, limit_s=120)
    story.child.recap(1 * GIB)
    driver.until(lambda: story.first(EventKind.RECAPPED) or story.child.gone)
    recapped = story.first(EventKind.RECAPPED)
    assert recapped is not None, str(story)
    assert recapped["freed_bytes"] > 5 * GIB and abs(recapped["cap_bytes"] - GIB) < 4 * MIB
    driver.until(lambda: "refused" in story.child.log_tail() or story.child.gone)
    story.child.recap(4 * GIB)
    driver.until(lambda: story.child.gone, limit_s=120)
    assert story.outcome.values == [1.0], str(story)


def test_an_error_that_the_objective_catches_is_told_with_its_figures(driver: ChildDriver) -> None:
    """The allocator itself tells it, with what was asked for, what is allowed, and what the card has free."""
    story = on_gpu(
        driver,
        "held = torch.empty(G // 2, dtype=torch.uint8, device='cuda')\n"
        "try:\n    torch.empty(3 * G, dtype=torch.uint8, device='cuda')\n"
        "except torch.cuda.OutOfMemoryError:\n    pass\nreturn 0.5",
    )
    driver.until(lambda: story.child.gone, limit_s=120)
    sample = story.outcome.sample
    assert (story.outcome.values, sample["num_ooms"], sample["num_ooms_handled"]) == ([0.5], 1, 0), str(story)
    assert sample["oom_asked_bytes"] == 3 * GIB
    assert abs(sample["oom_allowed_bytes"] - 2 * GIB) < 4 * MIB
    assert sample["oom_free_bytes"] > 3 * GIB and GIB // 2 <= sample["oom_reserved_bytes"] < GIB


def test_an_objective_may_fork_workers_that_use_the_gpu(driver: ChildDriver) -> None:
    """Setting the cap ahead by torch's own function would make a context, and then none of them could."""
    story = on_gpu(
        driver,
        "import os\npid = os.fork()\nif pid == 0:\n    code = 3\n    try:\n"
        "        code = int(torch.ones(5, device='cuda').sum())\n    finally:\n        os._exit(code)\n"
        "return float(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    )
    driver.until(lambda: story.child.gone, limit_s=120)
    assert story.outcome.values == [5.0], str(story)


@pytest.mark.parametrize("end", ["return 1.0", "os.kill(os.getpid(), 9)", "raise ValueError('no')"])
def test_all_memory_is_back_once_the_tree_is_gone(driver: ChildDriver, end: str) -> None:
    """Also when data loaders are left behind with their pinned memory and workers."""
    before = used_bytes()
    story = on_gpu(
        driver,
        "import os\nfrom torch.utils.data import DataLoader\n"
        "held = torch.ones(G, dtype=torch.uint8, device='cuda')\n"
        "loader = DataLoader(list(range(64)), num_workers=2, pin_memory=True, persistent_workers=True)\n"
        "batches = iter(loader)\nnext(batches)\nprint('begun')\n" + end,
    )
    driver.until(lambda: story.child.gone, limit_s=120)
    assert "begun" in story.log, str(story)
    wait_for(lambda: used_bytes() <= before + 8 * MIB, limit_s=5)


def test_a_spare_begins_at_once(driver: ChildDriver) -> None:
    story = on_gpu(driver, "torch.ones(1, device='cuda')\nreturn 1.0", preload=("torch", "torch._dynamo"))
    begun = story.child.begun_at_s
    assert begun is not None
    driver.until(lambda: story.first(EventKind.STARTED))
    driver.until(lambda: story.child.gone, limit_s=120)
    assert story.outcome.values == [1.0], str(story)
